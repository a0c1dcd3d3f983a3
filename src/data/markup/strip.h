// SPDX-License-Identifier: Apache-2.0
// Trimming as chat templates do it: Python's str.strip() and str.strip("\n") on UTF-8 text. Views into the argument.
#pragma once

#include <string_view>

namespace expertmesh::data {

// Without white space at both ends: everything that Python's str.isspace() accepts, U+3000 and the like included.
std::string_view strip_space(std::string_view text);

std::string_view lstrip_newlines(std::string_view text);
std::string_view rstrip_newlines(std::string_view text);
inline std::string_view strip_newlines(std::string_view text) { return lstrip_newlines(rstrip_newlines(text)); }

}  // namespace expertmesh::data
