// SPDX-License-Identifier: Apache-2.0
#include "data/markup/strip.h"

#include <array>

namespace expertmesh::data {
namespace {

// White space beyond ASCII, in UTF-8: U+0085 U+00A0 U+1680 U+2000-200A U+2028 U+2029 U+202F U+205F U+3000.
constexpr std::array<std::string_view, 19> kWideSpaces = {
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83",
    "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a",
    "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

// Bytes of the white space character at one end of the text; 0 where there is none.
size_t space_at_front(std::string_view text) {
  if (is_ascii_space(text.front())) return 1;
  for (const std::string_view space : kWideSpaces) {
    if (text.starts_with(space)) return space.size();
  }
  return 0;
}

size_t space_at_back(std::string_view text) {
  if (is_ascii_space(text.back())) return 1;
  for (const std::string_view space : kWideSpaces) {
    if (text.ends_with(space)) return space.size();
  }
  return 0;
}

}  // namespace

std::string_view strip_space(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = space_at_front(text);
    if (bytes == 0) break;
    text.remove_prefix(bytes);
  }
  while (!text.empty()) {
    const size_t bytes = space_at_back(text);
    if (bytes == 0) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::string_view lstrip_newlines(std::string_view text) {
  const size_t begin = text.find_first_not_of('\n');
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

std::string_view rstrip_newlines(std::string_view text) {
  const size_t last = text.find_last_not_of('\n');
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace expertmesh::data
