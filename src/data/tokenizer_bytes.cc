// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_bytes.h"

#include <array>

#include "data/tokenizer_unicode.h"

namespace expertmesh::data {
namespace {

constexpr uint32_t kFirstStandIn = 256;  // bytes without a printable character of their own are spelled from here up
constexpr uint32_t kAlphabetEnd = 324;

bool is_printable(uint32_t byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

struct Alphabet {
  std::array<std::string, 256> spelling;
  std::array<int16_t, kAlphabetEnd> byte;

  Alphabet() {
    byte.fill(-1);
    uint32_t stand_in = kFirstStandIn;
    for (uint32_t value = 0; value < 256; ++value) {
      const uint32_t point = is_printable(value) ? value : stand_in++;
      append_utf8(point, spelling[value]);
      byte[point] = static_cast<int16_t>(value);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet value;
  return value;
}

}  // namespace

std::string_view byte_spelling(unsigned char byte) { return alphabet().spelling[byte]; }

std::optional<std::string> try_bytes_of_spelling(std::string_view token) {
  const Alphabet& table = alphabet();
  std::string out;
  out.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token.data() + at);
    if (point.value >= kAlphabetEnd || table.byte[point.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(table.byte[point.value]));
    at += point.length;
  }
  return out;
}

}  // namespace expertmesh::data
