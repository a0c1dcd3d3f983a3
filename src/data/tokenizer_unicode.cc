// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_unicode.h"

#include <memory>

#include "base/json.h"

namespace expertmesh::data {
namespace {

struct ClassRange {
  CharFlag flag;
  uint32_t first, last;
};

constexpr ClassRange kRanges[] = {
#include "data/tokenizer_unicode_ranges.inc"
};

std::unique_ptr<uint8_t[]> build_flags() {
  auto flags = std::make_unique<uint8_t[]>(kCodePoints);
  for (const ClassRange& range : kRanges) {
    for (uint32_t point = range.first; point <= range.last; ++point) flags[point] |= range.flag;
  }
  flags['\r'] |= kNewline;
  flags['\n'] |= kNewline;
  return flags;
}

// How many bytes a character with this first byte has; 0 where none starts with it.
size_t promised_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// The length of the longest part of bytes[at...] that could be the start of a character; at least 1.
size_t broken_length(std::string_view bytes, size_t at) {
  const auto first = static_cast<unsigned char>(bytes[at]);
  const size_t wanted = promised_length(first);
  size_t length = 1;
  while (length < wanted && at + length < bytes.size()) {
    const auto next = static_cast<unsigned char>(bytes[at + length]);
    unsigned low = 0x80, high = 0xbf;
    if (length == 1) {
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    }
    if (next < low || next > high) break;
    ++length;
  }
  return length;
}

}  // namespace

const uint8_t* char_flags() {
  static const std::unique_ptr<uint8_t[]> flags = build_flags();
  return flags.get();
}

void append_utf8(uint32_t code_point, std::string& out) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3f));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (true) {
    const auto bad = base::find_invalid_utf8(bytes);
    out.append(bytes.substr(0, bad.value_or(bytes.size())));
    if (!bad) return out;
    out.append("\xef\xbf\xbd");
    bytes.remove_prefix(*bad + broken_length(bytes, *bad));
  }
}

size_t unfinished_utf8_tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t at = bytes.size() - back;
    if ((static_cast<unsigned char>(bytes[at]) & 0xc0U) == 0x80U) continue;
    const bool unfinished =
        promised_length(static_cast<unsigned char>(bytes[at])) > back && broken_length(bytes, at) == back;
    return unfinished ? back : 0;
  }
  return 0;
}

}  // namespace expertmesh::data
