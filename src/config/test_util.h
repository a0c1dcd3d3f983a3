// SPDX-License-Identifier: Apache-2.0
// Helpers of this room's tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/load.h"

namespace expertmesh::config {

inline constexpr std::string_view kRequired = "model: m\ntrain_dataset: d.jsonl\n";

inline Loaded parse_ok(const std::string& more, const std::vector<std::string>& overrides = {}) {
  return parse_config(std::string(kRequired) + more, "c.yaml", overrides, Command::kSft);
}

// The text of the kConfig error; a failed test and "" where there is none. Anything but base::Error ends the test.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig) << error.text();
    return error.text();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

// The same for text after the two required lines (so it starts at line 3).
inline std::string bad(const std::string& more, const std::vector<std::string>& overrides = {}) {
  return error_of([&] { parse_ok(more, overrides); });
}

}  // namespace expertmesh::config
