// SPDX-License-Identifier: Apache-2.0
// Unicode normalisation form C that touches only the parts of a text that need it.
#pragma once

#include <string>
#include <string_view>

namespace expertmesh::data {

// The NFC form: the text itself where it is in that form already, else `storage`, which then holds the result.
// The text must be valid UTF-8 and must outlive the view. Threads: any.
std::string_view normalize_nfc(std::string_view text, std::string& storage);

}  // namespace expertmesh::data
