// SPDX-License-Identifier: Apache-2.0
// The rows of one rank while they are generated: which go through the model next, and what becomes of each.
// Threads: one.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "generate/generator.h"
#include "train/token_batch.h"

namespace expertmesh::generate {

// A row that is being generated.
class Document {
 public:
  Document(size_t row, const Prompt& prompt, const GeneratorOptions& options);

  size_t row() const { return row_; }
  const Prompt& prompt() const { return prompt_; }
  const Answer& answer() const { return answer_; }
  train::DocumentCache& cache() { return cache_; }

  bool is_begun() const { return !answer_.ids.empty(); }
  bool is_finished() const { return answer_.is_ended || static_cast<int64_t>(answer_.ids.size()) == max_new_tokens_; }
  // What the model has not seen yet: the prompt, or the newest token.
  train::TokenPiece unseen() const;
  // Chooses the next token from the model's scores of the vocabulary.
  int32_t extend(std::span<const float> scores_V);

 private:
  size_t row_;
  const Prompt& prompt_;
  int64_t max_new_tokens_;
  TokenChooser chooser_;
  train::DocumentCache cache_;
  Answer answer_;
};

class RankDocuments {
 public:
  // Every `stride`-th of the prompts from `first` on is this rank's.
  RankDocuments(std::span<const Prompt> prompts, const GeneratorOptions& options, size_t first, size_t stride);

  bool has_work() const { return !running_.empty() || next_ < prompts_.size(); }
  // What goes through the model now: new documents where there is room, as many as make a batch of moderate size; else
  // all that are running. None where there is no work.
  std::vector<Document*> choose_batch();
  // Takes out what is finished, in the order of the rows.
  std::list<Document> take_finished();

 private:
  std::vector<Document*> begin_documents();

  std::span<const Prompt> prompts_;
  GeneratorOptions options_;
  size_t next_, stride_;
  std::list<Document> running_;  // in the order of the rows
};

}  // namespace expertmesh::generate
