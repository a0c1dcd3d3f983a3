// SPDX-License-Identifier: Apache-2.0
#include "generate/generator.h"

#include <ATen/Parallel.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/check.h"
#include "generate/documents.h"
#include "generate/report.h"
#include "ops/product.h"
#include "train/agreement.h"
#include "train/build.h"
#include "train/token_batch.h"

namespace expertmesh::generate {
namespace {

using Clock = std::chrono::steady_clock;

// Hands rows on in the order of the prompts, whenever they are finished.
class InOrder {
 public:
  explicit InOrder(const Listener& listener) : listener_(listener) {}

  void add(FinishedRow finished) {
    waiting_.emplace(finished.row, std::move(finished.answer));
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; first = waiting_.begin()) {
      if (listener_.on_answer) listener_.on_answer(next_, first->second);
      waiting_.erase(first);
      ++next_;
    }
  }

 private:
  const Listener& listener_;
  std::map<size_t, Answer> waiting_;
  size_t next_ = 0;
};

// hidden_TH of each document's last token.
at::Tensor last_rows(const at::Tensor& hidden_TH, const std::vector<int64_t>& cu_seqlens) {
  std::vector<int64_t> rows;
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) rows.push_back(cu_seqlens[d + 1] - 1);
  return at::index_select(hidden_TH, 0, at::tensor(rows));
}

// One forward of all ranks, after which each document of the batch is a token longer.
void extend(train::ShardedModel& model, train::LayerWalk& walk, const std::vector<Document*>& documents,
            const Listener& listener) {
  std::vector<train::TokenPiece> pieces;
  std::vector<train::DocumentCache*> caches;
  for (Document* document : documents) {
    pieces.push_back(document->unseen());
    caches.push_back(&document->cache());
  }
  const model::TokenBatch batch = train::make_document_batch(pieces);
  const ops::DecodingScope decoding;
  const at::Tensor hidden_TH = walk.extend(batch, caches);
  if (documents.empty()) return;
  const at::Tensor scores_DV = model.model().head().logits(last_rows(hidden_TH, batch.cu_seqlens), model.runtime());
  const auto vocab = static_cast<size_t>(scores_DV.size(1));
  const float* scores = scores_DV.const_data_ptr<float>();
  at::parallel_for(0, static_cast<int64_t>(documents.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto d = static_cast<size_t>(begin); d < static_cast<size_t>(end); ++d) {
      documents[d]->extend({scores + d * vocab, vocab});
    }
  });
  if (!listener.on_token) return;
  for (const Document* document : documents) {
    const Answer& answer = document->answer();
    if (!answer.is_ended) listener.on_token(document->row(), answer.ids.back());
  }
}

int64_t num_prompt_tokens(const std::vector<Document*>& documents) {
  int64_t tokens = 0;
  for (const Document* document : documents) {
    if (!document->is_begun()) tokens += static_cast<int64_t>(document->prompt().ids.size());
  }
  return tokens;
}

// Adds one iteration, as all ranks saw it.
void add_iteration(const std::vector<RankReport>& reports, double seconds, RunStats& stats) {
  int64_t prompt_tokens = 0, new_tokens = 0;
  for (const RankReport& report : reports) {
    prompt_tokens += report.prompt_tokens;
    new_tokens += report.new_tokens;
    stats.is_stopped |= report.wants_stop;
  }
  stats.prompt_tokens += prompt_tokens;
  stats.new_tokens += new_tokens;
  if (prompt_tokens > 0) {
    stats.prompt_seconds += seconds;
  } else {
    stats.decoded_tokens += new_tokens;
    stats.decode_seconds += seconds;
  }
}

// Collective over the world.
std::vector<RankReport> exchange(const RankReport& mine, comm::Group& world) {
  std::vector<RankReport> reports;
  for (const std::string& bytes : world.all_gather_text(pack(mine), "generated rows")) reports.push_back(unpack(bytes));
  return reports;
}

bool has_work(const std::vector<RankReport>& reports) {
  return std::any_of(reports.begin(), reports.end(), [](const RankReport& report) { return report.has_work; });
}

std::shared_ptr<const comm::Meshes> agree_and_build(comm::World& world, const train::Job& job) {
  train::agree_on_job(job, world.all());
  return train::build_meshes(world, job);
}

}  // namespace

Generator::Generator(comm::World& world, const train::Job& job)
    : world_(world),
      meshes_(agree_and_build(world, job)),
      model_(train::build_loaded_model(job, meshes_)),
      walk_(*model_, /*recompute=*/false) {}

RunStats Generator::run(std::span<const Prompt> prompts, const GeneratorOptions& options, const Listener& listener) {
  RunStats stats;
  if (prompts.empty()) return stats;
  RankDocuments documents(prompts, options, static_cast<size_t>(meshes_->coordinates().dp),
                          static_cast<size_t>(meshes_->topology().dp));
  InOrder answers(listener);
  std::vector<RankReport> reports;
  do {
    const auto start = Clock::now();
    const std::vector<Document*> batch = documents.choose_batch();
    RankReport mine{.prompt_tokens = num_prompt_tokens(batch), .new_tokens = static_cast<int64_t>(batch.size())};
    extend(*model_, walk_, batch, listener);
    for (const Document& document : documents.take_finished()) {
      mine.finished.push_back({document.row(), document.answer()});
    }
    mine.has_work = documents.has_work();
    mine.wants_stop = listener.wants_stop && listener.wants_stop();
    reports = exchange(mine, world_.all());
    add_iteration(reports, std::chrono::duration<double>(Clock::now() - start).count(), stats);
    if (world_.rank() != 0) continue;
    for (RankReport& report : reports) {
      for (FinishedRow& row : report.finished) answers.add(std::move(row));
    }
  } while (has_work(reports) && !stats.is_stopped);
  return stats;
}

}  // namespace expertmesh::generate
