// SPDX-License-Identifier: Apache-2.0
// The training set: every sample (row, cut) of all data sets, tokenised in parallel or taken from the token cache.
// Owns: the mapped token files. Threads: any, once built; ranks of one process share one Dataset.
// Errors: kData at FILE:LINE, the first bad row in the order of the file, whatever the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/sample.h"

namespace expertmesh::data {

struct DatasetOptions {
  std::string train_dataset;  // dataset-info YAML, row file or directory
  std::string model_dir;      // tokenizer and chat template; needs none where all rows are tokenized
  std::string chat_markup = "auto";
  std::string custom_chat_template;  // recognised in place of the model's own; empty = none
  int64_t vocabulary_rows = 0;       // rows of the embedding; 0 = unknown, ids are not checked
  int cutoff_len = 2048;
  uint64_t seed = 42;  // of the resampling
  // Leaves out samples that lose every target to the cut, as upstream's strategy `normal` does and no other.
  bool drops_unsupervised = true;
  bool skip_bad_rows = false;
  std::string cache_dir;                                                    // "" = no cache
  int threads = 0;                                                          // 0 = all cores
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;  // from any thread, one at a time
};

// ${EXPERTMESH_CACHE:-${XDG_CACHE_HOME:-~/.cache}/expertmesh}/tokens; "" where there is no home.
std::string default_token_cache_dir();

// For the table at start. Token counts are after the cut and cover what is trained on.
struct DataSummary {
  int64_t rows = 0;     // read, bad ones included
  int64_t samples = 0;  // after splitting and resampling
  int64_t tokens = 0;
  int64_t supervised_tokens = 0;  // targets after the shift
  int64_t cut = 0;                // samples longer than cutoff_len
  int64_t dropped = 0;            // of those, without a target left: never trained on
  int64_t without_target = 0;     // samples that fit and have no target: kept, add nothing to the loss
  int64_t longest = 0;            // tokens of the longest sample before the cut
  int64_t skipped_bad_rows = 0;
  std::vector<std::string> skipped_places;  // "rows.jsonl:7", the first ten
  std::string markup;                       // "" where all rows are tokenized
  bool from_cache = false;                  // nothing had to be tokenised
};

class TokenStore;
struct TokenRecord;

class Dataset {
 public:
  static std::shared_ptr<const Dataset> build(base::FileSystem& fs, const DatasetOptions& options);

  int64_t size() const { return static_cast<int64_t>(index_.size()); }
  Sample sample(int64_t i) const;            // cut at cutoff_len
  int64_t length(int64_t i) const;           // tokens after the cut
  int64_t targets(int64_t i) const;          // supervised labels after the cut and the shift
  bool is_dropped(int64_t i) const;          // longer than cutoff_len and no target left
  std::string where(int64_t i) const;        // "rows.jsonl:7"
  const std::string& name(int64_t i) const;  // of its data set
  int cut(int64_t i) const;                  // messages in the sample; 0 for tokenized rows
  const DataSummary& summary() const { return summary_; }
  // Identifies content, order and cut: ranks compare it, checkpoints keep it.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Part;  // one data set
  struct Ref {
    uint32_t part;
    uint32_t sample;
  };
  friend class DatasetBuilder;
  Dataset() = default;
  const TokenStore& store(int64_t i) const;
  const TokenRecord& record(int64_t i) const;
  void summarise();

  std::vector<std::shared_ptr<const Part>> parts_;
  std::vector<Ref> index_;
  int cutoff_len_ = 0;
  bool drops_unsupervised_ = true;
  std::vector<bool> dropped_;
  DataSummary summary_;
  uint64_t fingerprint_ = 0;
};

}  // namespace expertmesh::data
