// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json are written for Oniguruma. This turns one into the PCRE2 expression that means
// the same, and refuses what the two read differently, so that no text is cut in another way unnoticed.
#pragma once

#include <string>
#include <string_view>

namespace expertmesh::data {

// Errors: kModel with the offset of the part that is not supported.
std::string translate_expression(std::string_view expression);

}  // namespace expertmesh::data
