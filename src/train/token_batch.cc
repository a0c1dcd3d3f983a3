// SPDX-License-Identifier: Apache-2.0
#include "train/token_batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>

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

// Replaces the positions of the documents that say their own; three axes for all where one has three.
void place_tokens(std::span<const TokenPiece> pieces, model::TokenBatch& batch) {
  constexpr int64_t kAxes = 3;
  const bool has_axes =
      std::any_of(pieces.begin(), pieces.end(), [](const TokenPiece& piece) { return piece.positions.size() > 1; });
  for (size_t d = 0; d < pieces.size(); ++d) {
    if (pieces[d].positions.size() != 1) continue;
    const std::vector<int32_t>& places = pieces[d].positions.front();
    std::copy(places.begin(), places.end(), batch.positions_T.mutable_data_ptr<int64_t>() + batch.cu_seqlens[d]);
  }
  if (!has_axes) return;
  batch.axis_positions_AT = batch.positions_T.unsqueeze(0).repeat({kAxes, 1});
  for (size_t d = 0; d < pieces.size(); ++d) {
    if (pieces[d].positions.size() <= 1) continue;
    for (int64_t axis = 0; axis < kAxes; ++axis) {
      const std::vector<int32_t>& places = pieces[d].positions[static_cast<size_t>(axis)];
      std::copy(places.begin(), places.end(),
                batch.axis_positions_AT.mutable_data_ptr<int64_t>() + axis * batch.num_tokens() + batch.cu_seqlens[d]);
    }
  }
}

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

model::TokenBatch make_document_batch(std::span<const TokenPiece> pieces) {
  int64_t num_tokens = 0;
  for (const TokenPiece& piece : pieces) num_tokens += static_cast<int64_t>(piece.ids.size());
  Filler filler(num_tokens);
  for (const TokenPiece& piece : pieces) {
    filler.add_document(piece.ids.data(), piece.ids.data(), static_cast<int64_t>(piece.ids.size()), piece.begin);
  }
  place_tokens(pieces, filler.batch);
  return filler.batch;
}

}  // namespace expertmesh::train
