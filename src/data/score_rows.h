// SPDX-License-Identifier: Apache-2.0
// Rows of the `score` command: {"input_ids": [...]}, {"text": ...} or {"messages": [...]}, turned into token ids.
// Errors: kData at FILE:LINE, the first bad row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace expertmesh::data {

struct ScoreRow {
  std::vector<int32_t> input_ids;  // at least one
  uint32_t line = 0;
};

struct ScoreOptions {
  std::string input;
  std::string model_dir;
  std::string chat_markup = "auto";
  std::string custom_chat_template;
  int64_t vocabulary_rows = 0;
  int threads = 0;
};

// All rows in the order of the file. Messages may be in the internal format or have text for content.
std::vector<ScoreRow> load_score_rows(const base::FileSystem& fs, const ScoreOptions& options);

}  // namespace expertmesh::data
