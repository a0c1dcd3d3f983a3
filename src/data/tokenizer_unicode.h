// SPDX-License-Identifier: Apache-2.0
// What the tokenizer has to know of a character, in one byte per code point, and stepping through valid UTF-8.
// All classes are those of the reference library: Unicode 16 for letters, numbers and marks, an older one for NFC, to
// which later marks are plain characters (scripts/make_unicode_classes.py).
// Threads: any; the table is made at the first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace expertmesh::data {

enum CharFlag : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kMark = 4,
  kSpace = 8,        // White_Space
  kNewline = 16,     // CR and LF; they are kSpace too
  kCombining = 32,   // canonical combining class other than 0
  kMayCompose = 64,  // NFC_Quick_Check is not Yes: text with it has to go through normalisation
};

constexpr uint32_t kCodePoints = 0x110000;

// Flags by code point, kCodePoints of them.
const uint8_t* char_flags();

// The code point that starts at text[at], and its length in bytes. The text must be valid UTF-8 and `at` a boundary.
struct CodePoint {
  uint32_t value;
  uint32_t length;
};

inline CodePoint code_point_at(const char* text) {
  const auto* byte = reinterpret_cast<const unsigned char*>(text);
  const uint32_t first = byte[0];
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {((first & 0x1fU) << 6) | (byte[1] & 0x3fU), 2};
  if (first < 0xf0) return {((first & 0x0fU) << 12) | ((byte[1] & 0x3fU) << 6) | (byte[2] & 0x3fU), 3};
  return {((first & 0x07U) << 18) | ((byte[1] & 0x3fU) << 12) | ((byte[2] & 0x3fU) << 6) | (byte[3] & 0x3fU), 4};
}

// Appends the UTF-8 form of a code point that is no surrogate.
void append_utf8(uint32_t code_point, std::string& out);

// The text with every malformed part as U+FFFD, one for each longest start of a character (as Rust and Python do it).
std::string replace_invalid_utf8(std::string_view bytes);

// How many bytes at the end are the start of a character that is not finished.
size_t unfinished_utf8_tail(std::string_view bytes);

}  // namespace expertmesh::data
