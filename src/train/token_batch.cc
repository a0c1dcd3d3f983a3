// SPDX-License-Identifier: Apache-2.0
#include "train/token_batch.h"

#include <ATen/ops/empty.h>

namespace expertmesh::train {
namespace {

// Tensors of T tokens with raw access while they are filled.
struct Filler {
  explicit Filler(int64_t num_tokens) {
    batch.ids_T = at::empty({num_tokens}, at::TensorOptions().dtype(at::kLong));
    batch.positions_T = at::empty({num_tokens}, at::TensorOptions().dtype(at::kLong));
    batch.targets_T = at::empty({num_tokens}, at::TensorOptions().dtype(at::kLong));
    batch.cu_seqlens = {0};
    ids = batch.ids_T.mutable_data_ptr<int64_t>();
    positions = batch.positions_T.mutable_data_ptr<int64_t>();
    targets = batch.targets_T.mutable_data_ptr<int64_t>();
  }

  // `labels` has one entry a token, already aligned with the ids (not shifted).
  void add_document(const int32_t* document, const int32_t* labels, int64_t length, int64_t first_position = 0) {
    if (length == 0) return;
    const int64_t begin = batch.cu_seqlens.back();
    for (int64_t t = 0; t < length; ++t) {
      ids[begin + t] = document[t];
      positions[begin + t] = first_position + t;
      targets[begin + t] = t + 1 < length ? labels[t + 1] : data::kIgnoredLabel;
    }
    batch.cu_seqlens.push_back(begin + length);
  }

  model::TokenBatch batch;
  int64_t *ids, *positions, *targets;
};

}  // namespace

model::TokenBatch make_token_batch(const data::MicroBatch& batch) {
  Filler filler(batch.tokens);
  for (size_t document = 0; document < batch.lengths.size(); ++document) {
    const int64_t offset = batch.offsets[document];
    filler.add_document(batch.input_ids.data() + offset, batch.labels.data() + offset, batch.lengths[document]);
  }
  if (batch.unit_weights) return filler.batch;

  at::Tensor weights_T = at::empty({batch.tokens}, at::TensorOptions().dtype(at::kFloat));
  float* weights = weights_T.mutable_data_ptr<float>();
  for (size_t document = 0; document < batch.lengths.size(); ++document) {
    const float* given = batch.loss_weights.data() + batch.offsets[document];
    const int64_t length = batch.lengths[document];
    for (int64_t t = 0; t < length; ++t) *weights++ = t + 1 < length ? given[t + 1] : 0.0F;
  }
  filler.batch.weights_T = weights_T;
  return filler.batch;
}

model::TokenBatch make_score_batch(const std::vector<std::vector<int32_t>>& documents) {
  std::vector<TokenPiece> pieces;
  for (const auto& document : documents) pieces.push_back({.ids = document});
  return make_continuation_batch(pieces);
}

model::TokenBatch make_continuation_batch(std::span<const TokenPiece> pieces) {
  int64_t num_tokens = 0;
  for (const TokenPiece& piece : pieces) num_tokens += static_cast<int64_t>(piece.ids.size());
  Filler filler(num_tokens);
  for (const TokenPiece& piece : pieces) {
    filler.add_document(piece.ids.data(), piece.ids.data(), static_cast<int64_t>(piece.ids.size()), piece.begin);
  }
  return filler.batch;
}

}  // namespace expertmesh::train
