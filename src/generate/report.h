// SPDX-License-Identifier: Apache-2.0
// What a rank tells the others after each iteration, as bytes for one exchange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generate/generator.h"

namespace expertmesh::generate {

struct FinishedRow {
  size_t row = 0;
  Answer answer;
};

struct RankReport {
  bool wants_stop = false;
  bool has_work = false;
  int64_t prompt_tokens = 0, new_tokens = 0;  // of this iteration
  std::vector<FinishedRow> finished = {};
};

std::string pack(const RankReport& report);
RankReport unpack(std::string_view bytes);

}  // namespace expertmesh::generate
