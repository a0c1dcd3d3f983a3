// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/version.h"
#include "data/content_hash.h"
#include "data/convert/converter.h"
#include "data/dataset_info.h"
#include "data/row_file.h"
#include "data/text_setup.h"
#include "data/token_cache.h"
#include "data/tokenise.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

constexpr size_t kMaxPlaces = 10;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_tokenized(const DatasetEntry& entry) { return entry.converter == "tokenized"; }

// First position that can be a target: position 0 has nothing before it.
size_t first_target(const TokenRecord& record) { return std::max<size_t>(record.prompt, 1); }

int64_t count_targets(const TokenStore& store, const TokenRecord& record, size_t length) {
  if (!store.has_labels()) {
    if (record.weight <= kLossWeightEpsilon || length <= first_target(record)) return 0;
    return static_cast<int64_t>(length - first_target(record));
  }
  if (length <= 1) return 0;
  return std::ranges::count_if(store.labels(record).subspan(1, length - 1),
                               [](int32_t label) { return label != kIgnoredLabel; });
}

}  // namespace

std::string default_token_cache_dir() {
  if (const std::string own = environment("EXPERTMESH_CACHE"); !own.empty()) return base::join_path(own, "tokens");
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) {
    return base::join_path(xdg, "expertmesh/tokens");
  }
  const std::string home = environment("HOME");
  return home.empty() ? "" : base::join_path(home, ".cache/expertmesh/tokens");
}

struct Dataset::Part {
  std::string name;
  std::vector<std::string> files;
  TokenStore store;
  ContentHash content;
};

// Builds the parts of a Dataset one after the other.
class DatasetBuilder {
 public:
  DatasetBuilder(base::FileSystem& fs, const DatasetOptions& options)
      : fs_(fs),
        options_(options),
        cache_(fs, options.cache_dir),
        text_(fs, options.model_dir, options.chat_markup, options.custom_chat_template) {}

  std::shared_ptr<const Dataset> build() {
    const std::vector<DatasetEntry> entries = load_dataset_entries(fs_, options_.train_dataset);
    for (const DatasetEntry& entry : entries) {
      for (const std::string& path : list_row_files(fs_, entry.path)) bytes_total_ += fs_.stat(path).size;
    }
    auto dataset = std::shared_ptr<Dataset>(new Dataset);
    dataset->cutoff_len_ = options_.cutoff_len;
    dataset->drops_unsupervised_ = options_.drops_unsupervised;
    base::PythonRandom random(options_.seed);
    for (const DatasetEntry& entry : entries) {
      auto part = build_part(entry);
      dataset->summary_.rows += part->store.rows();
      add_index(*dataset, entry, part->store, random);
      note_skipped(*dataset, *part);
      dataset->parts_.push_back(std::move(part));
    }
    if (uses_text_) dataset->summary_.markup = text_.markup().name;
    dataset->summary_.from_cache = is_from_cache_;
    dataset->summarise();
    warn(dataset->summary_);
    return dataset;
  }

 private:
  std::shared_ptr<Dataset::Part> build_part(const DatasetEntry& entry) {
    std::vector<RowFile> files;
    for (std::string& path : list_row_files(fs_, entry.path)) files.emplace_back(fs_, std::move(path));
    const ContentHash content = content_key(entry, files);
    // Tokens of another build are made again; the identity of the data set stays.
    const ContentHash key = content_hash(fmt::format("{}\n{}", base::build_id(), content.hex()));
    auto store = cache_.try_get(key);
    if (!store) {
      is_from_cache_ = false;
      store = cache_.put(key, tokenise_part(entry, files));
    } else {
      report(entry, files);
    }
    check_vocabulary(store->id_limit(), options_.vocabulary_rows);
    if (store->rows() == 0) {
      throw make_error(Code::kData, "data/rows", "the data set is empty: it has no rows").at(entry.path);
    }
    auto part = std::make_shared<Dataset::Part>(Dataset::Part{entry.name, {}, std::move(*store), content});
    for (const RowFile& file : files) part->files.push_back(file.path());
    return part;
  }

  // Everything that the tokens depend on, but for this program.
  ContentHash content_key(const DatasetEntry& entry, const std::vector<RowFile>& files) {
    std::string text = fmt::format("converter {}\nskip {}\n", entry.converter, options_.skip_bad_rows);
    if (is_tokenized(entry)) {
      text += fmt::format("vocabulary {}\n", options_.vocabulary_rows);
    } else {
      uses_text_ = true;
      text += fmt::format("markup {}\ntokenizer {}\n", text_.markup().name, text_.fingerprint());
    }
    for (const RowFile& file : files) {
      const bool may_be_array = !file.path().ends_with("l") && !file.path().ends_with("L");
      text += fmt::format("{} {} {}\n", may_be_array, file.bytes().size(), content_hash(file.bytes()).hex());
    }
    return content_hash(text);
  }

  TokenContent tokenise_part(const DatasetEntry& entry, const std::vector<RowFile>& files) {
    const Renderer* renderer = is_tokenized(entry) ? nullptr : &text_.renderer();
    if (renderer != nullptr) check_vocabulary(renderer->tokenizer().id_limit(), options_.vocabulary_rows);
    TokeniseJob job{.files = files,
                    .converter = *find_converter(entry.converter),
                    .renderer = renderer,
                    .skip_bad_rows = options_.skip_bad_rows,
                    .vocabulary_rows = options_.vocabulary_rows,
                    .threads = options_.threads,
                    .progress = nullptr};
    if (options_.progress)
      job.progress = [this](uint64_t bytes) { options_.progress(bytes_done_ += bytes, bytes_total_); };
    return tokenise(job);
  }

  void report(const DatasetEntry&, const std::vector<RowFile>& files) {
    for (const RowFile& file : files) bytes_done_ += file.bytes().size();
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
  }

  // All samples of the part in order, or `size` and then `weight` drawn with replacement, as Python's random.choices.
  void add_index(Dataset& dataset, const DatasetEntry& entry, const TokenStore& store, base::PythonRandom& random) {
    std::vector<uint32_t> chosen(store.records().size());
    for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<uint32_t>(i);
    const auto draw = [&](int64_t count) {
      if (chosen.empty()) return;
      std::vector<uint32_t> drawn;
      for (const int64_t i : random.choices(static_cast<int64_t>(chosen.size()), count)) {
        drawn.push_back(chosen[static_cast<size_t>(i)]);
      }
      chosen = std::move(drawn);
    };
    if (entry.size) draw(*entry.size);
    if (entry.weight) {
      const auto count = static_cast<int64_t>(static_cast<double>(chosen.size()) * *entry.weight);
      if (count == 0) {
        throw make_error(Code::kData, "data/dataset_info", "data set {}: weight {} of {} samples leaves none",
                         entry.name, *entry.weight, chosen.size())
            .at(entry.where);
      }
      draw(count);
    }
    const auto part = static_cast<uint32_t>(dataset.parts_.size());
    for (const uint32_t sample : chosen) dataset.index_.push_back({part, sample});
  }

  static void note_skipped(Dataset& dataset, const Dataset::Part& part) {
    DataSummary& summary = dataset.summary_;
    summary.skipped_bad_rows += static_cast<int64_t>(part.store.skipped().size());
    for (const SkippedRow& row : part.store.skipped()) {
      if (summary.skipped_places.size() >= kMaxPlaces) return;
      summary.skipped_places.push_back(fmt::format("{}:{}", part.files[row.file], row.line));
    }
  }

  // What does not reach the model is said, not only counted.
  void warn(const DataSummary& summary) const {
    if (summary.skipped_bad_rows > 0) {
      base::log_warn("{} of {} rows are bad and skipped: {}{}", summary.skipped_bad_rows, summary.rows,
                     fmt::join(summary.skipped_places, ", "),
                     summary.skipped_bad_rows > static_cast<int64_t>(kMaxPlaces) ? ", ..." : "");
    }
    if (summary.dropped > 0) {
      base::log_warn("{} samples are longer than cutoff_len {} and have no target left: dropped", summary.dropped,
                     options_.cutoff_len);
    }
    if (summary.without_target > 0) {
      base::log_warn("{} samples have no target to train on and add nothing to the loss", summary.without_target);
    }
  }

  base::FileSystem& fs_;
  const DatasetOptions& options_;
  TokenCache cache_;
  TextSetup text_;
  bool uses_text_ = false;
  bool is_from_cache_ = true;
  uint64_t bytes_total_ = 0;
  uint64_t bytes_done_ = 0;
};

std::shared_ptr<const Dataset> Dataset::build(base::FileSystem& fs, const DatasetOptions& options) {
  return DatasetBuilder(fs, options).build();
}

const TokenStore& Dataset::store(int64_t i) const { return parts_[index_[static_cast<size_t>(i)].part]->store; }

const TokenRecord& Dataset::record(int64_t i) const {
  return store(i).records()[index_[static_cast<size_t>(i)].sample];
}

int64_t Dataset::length(int64_t i) const { return std::min<int64_t>(record(i).length, cutoff_len_); }

int64_t Dataset::targets(int64_t i) const { return count_targets(store(i), record(i), static_cast<size_t>(length(i))); }

bool Dataset::is_dropped(int64_t i) const { return dropped_[static_cast<size_t>(i)]; }

const std::string& Dataset::name(int64_t i) const { return parts_[index_[static_cast<size_t>(i)].part]->name; }

int Dataset::cut(int64_t i) const { return static_cast<int>(record(i).cut); }

std::string Dataset::where(int64_t i) const {
  const Part& part = *parts_[index_[static_cast<size_t>(i)].part];
  return fmt::format("{}:{}", part.files[record(i).file], record(i).line);
}

Sample Dataset::sample(int64_t i) const {
  const TokenStore& tokens = store(i);
  const TokenRecord& token_record = record(i);
  const auto length = static_cast<size_t>(this->length(i));
  const auto ids = tokens.ids(token_record).first(length);
  Sample sample;
  sample.input_ids.assign(ids.begin(), ids.end());
  if (tokens.has_labels()) {
    const auto labels = tokens.labels(token_record).first(length);
    sample.labels.assign(labels.begin(), labels.end());
  } else {
    sample.labels = sample.input_ids;
    const size_t ignored =
        token_record.weight > kLossWeightEpsilon ? std::min<size_t>(token_record.prompt, length) : length;
    std::fill_n(sample.labels.begin(), ignored, kIgnoredLabel);
  }
  sample.loss_weights.resize(length);
  for (size_t t = 0; t < length; ++t) {
    sample.loss_weights[t] = sample.labels[t] == kIgnoredLabel ? 0.0F : token_record.weight;
  }
  return sample;
}

void Dataset::summarise() {
  summary_.samples = size();
  if (size() == 0) {
    throw make_error(Code::kData, "data/rows", "no samples are left of {} rows, {} of them bad", summary_.rows,
                     summary_.skipped_bad_rows);
  }
  dropped_.assign(index_.size(), false);
  ContentHash order = content_hash(std::as_bytes(std::span(index_)));
  for (const auto& part : parts_) order = content_hash(order.hex() + part->content.hex());
  fingerprint_ = content_hash(fmt::format("{} {}", order.hex(), cutoff_len_)).low;

  for (int64_t i = 0; i < size(); ++i) {
    const int64_t whole = record(i).length;
    const int64_t kept = length(i);
    const int64_t targets = this->targets(i);
    summary_.longest = std::max(summary_.longest, whole);
    if (whole > kept) ++summary_.cut;
    if (drops_unsupervised_ && whole > kept && targets == 0) {
      dropped_[static_cast<size_t>(i)] = true;
      ++summary_.dropped;
      continue;
    }
    if (targets == 0) ++summary_.without_target;
    summary_.tokens += kept;
    summary_.supervised_tokens += targets;
  }
  if (summary_.supervised_tokens > 0) return;
  throw make_error(Code::kData, "data/rows",
                   "none of {} samples has a target to train on; cutoff_len {} cuts {} of them", size(), cutoff_len_,
                   summary_.cut)
      .at(where(0))
      .hint("Raise cutoff_len, or give rows with supervised answers.");
}

}  // namespace expertmesh::data
