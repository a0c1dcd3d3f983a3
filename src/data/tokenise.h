// SPDX-License-Identifier: Apache-2.0
// Rows of the files of one data set to token ids, in parallel; the result does not depend on the number of threads.
// Errors: kData at FILE:LINE, the first bad row in the order of the files.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/convert/converter.h"
#include "data/render.h"
#include "data/row_file.h"
#include "data/token_store.h"

namespace expertmesh::data {

struct TokeniseJob {
  const std::vector<RowFile>& files;
  const Converter& converter;
  const Renderer* renderer = nullptr;            // none for tokenized rows
  bool skip_bad_rows = false;                    // bad rows are listed in the result
  int64_t vocabulary_rows = 0;                   // ids of tokenized rows must be below; 0 = not checked
  int threads = 0;                               // 0 = all cores
  std::function<void(uint64_t bytes)> progress;  // bytes of rows done since the last call; one call at a time
};

TokenContent tokenise(const TokeniseJob& job);

}  // namespace expertmesh::data
