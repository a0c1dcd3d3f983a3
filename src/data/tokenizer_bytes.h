// SPDX-License-Identifier: Apache-2.0
// The byte-level alphabet of tokenizer.json: each byte is spelled by one printable character.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace expertmesh::data {

// The character that spells a byte, in UTF-8.
std::string_view byte_spelling(unsigned char byte);

// The bytes that a token spells; nothing where it has a character outside the alphabet. Needs valid UTF-8.
std::optional<std::string> try_bytes_of_spelling(std::string_view token);

}  // namespace expertmesh::data
