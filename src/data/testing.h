// SPDX-License-Identifier: Apache-2.0
// Helpers of this room's tests: files of the source tree, temporary files, rows as text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/dataset.h"

namespace expertmesh::data::testing {

inline std::string source_path(std::string_view relative) {
  return std::string(EXPERTMESH_SOURCE_DIR) + "/" + std::string(relative);
}

inline std::unique_ptr<base::FileSystem> file_system() { return base::make_posix_file_system(base::Code::kData); }

inline std::string read_text(const std::string& path) { return file_system()->read_all(path); }
inline base::Json read_json(const std::string& path) { return base::parse_json(read_text(path)); }

// A directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    std::string name = std::filesystem::temp_directory_path() / "expertmesh-data-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view text) const {
    std::string path = path_ + "/" + name;
    file_system()->create(path)->append(text);
    return path;
  }
  // A dataset-info YAML with one entry for rows.
  std::string write_info(const std::string& rows, std::string_view converter, std::string_view more = "") const {
    return write("info.yaml", fmt::format("rows:\n  path: {}\n  source: local\n{}{}", rows,
                                          converter.empty() ? "" : fmt::format("  converter: {}\n", converter), more));
  }

 private:
  std::string path_;
};

// The error of a call; fails the test where there is none.
template <typename Call>
base::Error error_of(Call&& call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {base::Code::kInternal, "none", "none"};
}

// One supervised turn in the internal format.
inline std::string turn_row(std::string_view question, std::string_view answer) {
  return fmt::format(
      "{{\"messages\": [{{\"role\": \"user\", \"content\": [{{\"type\": \"text\", \"value\": {}}}]}}, "
      "{{\"role\": \"assistant\", \"content\": [{{\"type\": \"text\", \"value\": {}}}]}}]}}\n",
      base::json_quote(question), base::json_quote(answer));
}

// Options for rows of text with the small test tokenizer, without a cache.
inline DatasetOptions text_options(std::string train_dataset) {
  DatasetOptions options;
  options.train_dataset = std::move(train_dataset);
  options.model_dir = source_path("tests/cases/render/tokenizer");
  options.chat_markup = "qwen3";
  options.vocabulary_rows = 512;
  return options;
}

inline std::shared_ptr<const Dataset> build(const DatasetOptions& options) {
  const auto fs = file_system();
  return Dataset::build(*fs, options);
}

// A data set of tokenized rows, given as JSON lines.
inline std::shared_ptr<const Dataset> build_tokenized(const TempDir& dir, std::string_view rows, int cutoff_len = 2048,
                                                      std::string_view more = "", bool drops_unsupervised = true) {
  DatasetOptions options;
  options.train_dataset = dir.write_info(dir.write("rows.jsonl", rows), "tokenized", more);
  options.cutoff_len = cutoff_len;
  options.drops_unsupervised = drops_unsupervised;
  return build(options);
}

}  // namespace expertmesh::data::testing
