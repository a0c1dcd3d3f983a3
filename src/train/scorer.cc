// SPDX-License-Identifier: Apache-2.0
#include "train/scorer.h"

#include <cstring>

#include "train/agreement.h"
#include "train/build.h"
#include "train/layer_walk.h"
#include "train/token_batch.h"

namespace expertmesh::train {
namespace {

constexpr size_t kTokensPerBatch = 2048;

// [begin, end) of the rows that are scored together.
struct RowRange {
  size_t begin = 0, end = 0;
};

std::vector<RowRange> make_batches(const std::vector<data::InputRow>& rows) {
  std::vector<RowRange> batches;
  size_t tokens = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (batches.empty() || tokens + rows[i].input_ids.size() > kTokensPerBatch) {
      batches.push_back({i, i});
      tokens = 0;
    }
    tokens += rows[i].input_ids.size();
    batches.back().end = i + 1;
  }
  return batches;
}

// One value a token of the batch; a rank without a batch takes part with one token, because others may need its
// experts.
std::vector<float> score_batch(ShardedModel& model, LayerWalk& walk, const std::vector<data::InputRow>& rows,
                               const RowRange& range) {
  constexpr int32_t kAnyToken = 0;
  std::vector<TokenPiece> documents;
  for (size_t i = range.begin; i < range.end; ++i) {
    documents.push_back({.ids = rows[i].input_ids, .positions = rows[i].positions});
  }
  const bool is_idle = documents.empty();
  if (is_idle) documents.push_back({.ids = {&kAnyToken, 1}});
  const model::TokenBatch batch = make_document_batch(documents);
  const at::Tensor hidden_TH = walk.infer(batch);
  const at::Tensor logprobs_T = model.model().head().logprobs(hidden_TH, batch, model.runtime());
  if (is_idle) return {};
  const float* data = logprobs_T.const_data_ptr<float>();
  return {data, data + logprobs_T.numel()};
}

void emit_batch(const std::vector<data::InputRow>& rows, const RowRange& range, const std::string& bytes,
                const std::function<void(const RowScore&)>& emit) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  size_t offset = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    RowScore score;
    const size_t length = rows[i].input_ids.size();
    for (size_t t = 0; t + 1 < length; ++t) {
      score.logprobs.push_back(values[offset + t]);
      score.nll -= static_cast<double>(values[offset + t]);
    }
    offset += length;
    emit(score);
  }
}

}  // namespace

void run_scoring(comm::World& world, const Job& job, const std::vector<data::InputRow>& rows,
                 const std::function<void(const RowScore&)>& emit) {
  agree_on_job(job, world.all());
  agree_on_input("the rows", data::fingerprint(rows), world.all());
  const auto meshes = build_meshes(world, job);
  const auto model = build_loaded_model(job, meshes);
  LayerWalk walk(*model, /*recompute=*/false);

  const std::vector<RowRange> batches = make_batches(rows);
  const size_t dp = meshes->topology().dp, dp_rank = meshes->coordinates().dp;
  for (size_t first = 0; first < batches.size(); first += dp) {
    const RowRange mine = first + dp_rank < batches.size() ? batches[first + dp_rank] : RowRange{};
    const std::vector<float> values = score_batch(*model, walk, rows, mine);
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    const std::vector<std::string> all = meshes->dp().all_gather_text(bytes, "scores");
    if (world.rank() != 0) continue;
    for (size_t i = 0; i < dp && first + i < batches.size(); ++i) emit_batch(rows, batches[first + i], all[i], emit);
  }
}

}  // namespace expertmesh::train
