// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/json.h"

namespace expertmesh::base {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080U;

// Length of the well-formed sequence that starts at `at`, 0 where there is none.
size_t sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t left = text.size() - at;
  const auto tail = [&](size_t count, unsigned low, unsigned high) {
    if (left <= count || byte(at + 1) < low || byte(at + 1) > high) return false;
    for (size_t i = 2; i <= count; ++i) {
      if ((byte(at + i) & 0xc0U) != 0x80U) return false;
    }
    return true;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1, 0x80, 0xbf) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    // E0 would be overlong below A0; ED would be a surrogate above 9F.
    return tail(2, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    return tail(3, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {  // plain ASCII, eight at a time
      uint64_t word;
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & kHighBits) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const size_t length = sequence_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

}  // namespace expertmesh::base
