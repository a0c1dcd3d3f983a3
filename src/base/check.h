// SPDX-License-Identifier: Apache-2.0
// EXPERTMESH_CHECK: for mistakes of the programmer only, never reachable from user input (use base::Error there).
#pragma once

#include <string>

#include "base/error.h"

namespace expertmesh::base::detail {

template <typename... Args>
std::string check_text(const char* expression, fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format("check failed: {}: {}", expression, fmt::format(format, std::forward<Args>(args)...));
}

inline std::string check_text(const char* expression) { return fmt::format("check failed: {}", expression); }

}  // namespace expertmesh::base::detail

// EXPERTMESH_CHECK(rows == ids.size(), "{} rows for {} ids", rows, ids.size());
#define EXPERTMESH_CHECK(condition, ...)                                                                             \
  do {                                                                                                               \
    if (!(condition)) [[unlikely]] {                                                                                 \
      throw ::expertmesh::base::Error(::expertmesh::base::Code::kInternal, "internal",                               \
                                      ::expertmesh::base::detail::check_text(#condition __VA_OPT__(, ) __VA_ARGS__)) \
          .at(fmt::format("{}:{}", __FILE__, __LINE__));                                                             \
    }                                                                                                                \
  } while (false)
