// SPDX-License-Identifier: Apache-2.0
#include "generate/documents.h"

#include <algorithm>
#include <iterator>

namespace expertmesh::generate {
namespace {

// Prompts that go through the model together: enough to keep it busy, few enough that their activations stay small.
constexpr size_t kPromptTokens = 4096;

}  // namespace

Document::Document(size_t row, const Prompt& prompt, const GeneratorOptions& options)
    : row_(row),
      prompt_(prompt),
      max_new_tokens_(options.max_new_tokens),
      chooser_(options.sampling, options.seed, row) {}

train::TokenPiece Document::unseen() const {
  if (!is_begun()) return {.ids = prompt_.ids};
  const size_t seen = prompt_.ids.size() + answer_.ids.size() - 1;
  return {.ids = std::span(answer_.ids).last(1), .begin = static_cast<int64_t>(seen)};
}

int32_t Document::extend(std::span<const float> scores_V) {
  const int32_t id = chooser_.choose(scores_V);
  answer_.ids.push_back(id);
  answer_.is_ended = std::find(prompt_.end_ids.begin(), prompt_.end_ids.end(), id) != prompt_.end_ids.end();
  return id;
}

RankDocuments::RankDocuments(std::span<const Prompt> prompts, const GeneratorOptions& options, size_t first,
                             size_t stride)
    : prompts_(prompts), options_(options), next_(first), stride_(stride) {}

std::vector<Document*> RankDocuments::begin_documents() {
  std::vector<Document*> batch;
  size_t tokens = 0;
  while (next_ < prompts_.size() && static_cast<int64_t>(running_.size()) < options_.batch) {
    const Prompt& prompt = prompts_[next_];
    tokens += prompt.ids.size();
    if (!batch.empty() && tokens > kPromptTokens) break;
    batch.push_back(&running_.emplace_back(next_, prompt, options_));
    next_ += stride_;
  }
  return batch;
}

std::vector<Document*> RankDocuments::choose_batch() {
  std::vector<Document*> batch = begin_documents();
  if (!batch.empty()) return batch;
  for (Document& document : running_) batch.push_back(&document);
  return batch;
}

std::list<Document> RankDocuments::take_finished() {
  std::list<Document> finished;
  for (auto it = running_.begin(); it != running_.end();) {
    const auto next = std::next(it);
    if (it->is_finished()) finished.splice(finished.end(), running_, it);
    it = next;
  }
  return finished;
}

}  // namespace expertmesh::generate
