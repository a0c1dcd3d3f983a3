// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "data/tokenizer_testing.h"

namespace expertmesh::data {
namespace {

std::string normalized(std::string_view text) {
  std::string storage;
  return std::string(normalize_nfc(text, storage));
}

std::string by_utf8proc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(out, std::free);
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(length)};
}

TEST(TokenizerNormalizer, TextInFormCIsNotCopied) {
  const std::string text = "caf\xc3\xa9 \xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80";
  std::string storage = "untouched";
  EXPECT_EQ(normalize_nfc(text, storage).data(), text.data());
  EXPECT_EQ(storage, "untouched");
}

TEST(TokenizerNormalizer, KnownForms) {
  EXPECT_EQ(normalized(""), "");
  EXPECT_EQ(normalized("xe\xcc\x81y"), "x\xc3\xa9y");
  EXPECT_EQ(normalized("\xe2\x84\xab"), "\xc3\x85");                              // angstrom sign
  EXPECT_EQ(normalized("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"), "\xea\xb0\x81");  // Hangul from three parts
  EXPECT_EQ(normalized("\xea\xb0\x80\xe1\x86\xa8"), "\xea\xb0\x81");              // and from two
  EXPECT_EQ(normalized("a\xcc\x81\xcc\xa3"), "\xe1\xba\xa1\xcc\x81");             // marks in order, then composed
  EXPECT_EQ(normalized("\xe0\xa5\x98"), "\xe0\xa4\x95\xe0\xa4\xbc");              // excluded from composition
  EXPECT_EQ(normalized("\xcc\x81"), "\xcc\x81");
}

// Marks newer than the reference's table are plain characters to it: nothing composes across them.
TEST(TokenizerNormalizer, NewMarksBlockAsInTheReference) {
  const std::string text = "e\xe0\xa3\x90\xcc\x81";  // e, U+08D0, acute
  EXPECT_EQ(normalized(text), text);
  EXPECT_NE(by_utf8proc(text), text);
}

TEST(TokenizerNormalizer, EqualsUtf8procOnMixedText) {
  const std::vector<std::string> pieces = {"e",
                                           "A",
                                           "o",
                                           " ",
                                           "\xcc\x81",
                                           "\xcc\xa3",
                                           "\xcc\x82",
                                           "\xcc\x84",
                                           "\xcc\x9b",
                                           "\xe1\x84\x80",
                                           "\xe1\x85\xa1",
                                           "\xe1\x86\xa8",
                                           "\xea\xb0\x80",
                                           "\xe0\xa4\x95",
                                           "\xe0\xa4\xbc",
                                           "\xe0\xa5\x8d",
                                           "\xe0\xa7\x87",
                                           "\xe0\xa6\xbe",
                                           "\xe0\xbd\xb1",
                                           "\xe0\xbd\xb2",
                                           "\xe0\xbd\xb3",
                                           "\xe2\x84\xab",
                                           "\xcd\x84",
                                           "\xe1\xba\xad"};
  std::mt19937 dice(7);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = testing::random_text(dice, pieces, 1 + dice() % 12, 0x400);
    ASSERT_EQ(normalized(text), by_utf8proc(text)) << round;
  }
}

// 4,000,000 marks in the worst order: ordering them by exchanging neighbours would take hours, and meet the time limit
// of the program of tests.
TEST(TokenizerNormalizer, LongRunsOfMarksTakeLinearTime) {
  std::string text = "a";
  for (int i = 0; i < 2000000; ++i) text += "\xcc\x81";
  for (int i = 0; i < 2000000; ++i) text += "\xcc\xa3";
  const std::string out = normalized(text);
  EXPECT_EQ(out.substr(0, 5), "\xe1\xba\xa1\xcc\xa3");
  EXPECT_EQ(out.size(), text.size());
}

}  // namespace
}  // namespace expertmesh::data
