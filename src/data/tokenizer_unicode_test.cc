// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_unicode.h"

#include <gtest/gtest.h>

#include "data/tokenizer_bytes.h"

namespace expertmesh::data {
namespace {

TEST(TokenizerUnicode, ClassesOfKnownCharacters) {
  const uint8_t* flags = char_flags();
  EXPECT_EQ(flags['a'], kLetter);
  EXPECT_EQ(flags['7'], kNumber);
  EXPECT_EQ(flags[' '], kSpace);
  EXPECT_EQ(flags['\n'], kSpace | kNewline);
  EXPECT_EQ(flags['!'], 0);
  EXPECT_EQ(flags[0x301], kMark | kCombining | kMayCompose);  // acute
  EXPECT_EQ(flags[0x94d], kMark | kCombining);                // virama: has a class, composes with nothing
  EXPECT_EQ(flags[0x212b], kLetter | kMayCompose);            // the angstrom sign becomes a letter
  EXPECT_EQ(flags[0x1161], kLetter | kMayCompose);            // a vowel of Hangul
  EXPECT_EQ(flags[0x180e], 0);                                // once white space, not any more
  EXPECT_EQ(flags[0x1e4d0], kLetter);                         // Unicode 15
  EXPECT_EQ(flags[0x105d2], kLetter);                         // Unicode 16
  EXPECT_EQ(flags[0x8d0] & kCombining, 0);                    // too new for the reference's normalisation
}

TEST(TokenizerUnicode, CodePointsThereAndBack) {
  for (const uint32_t point : {0U, 0x41U, 0x7fU, 0x80U, 0x7ffU, 0x800U, 0xffffU, 0x10000U, 0x10ffffU}) {
    std::string text;
    append_utf8(point, text);
    const CodePoint read = code_point_at(text.c_str());
    EXPECT_EQ(read.value, point);
    EXPECT_EQ(read.length, text.size());
  }
}

// One replacement for each longest start of a character, as Rust's and Python's decoders do it.
TEST(TokenizerUnicode, ReplacesWhatIsNoUtf8) {
  const std::string sign = "\xef\xbf\xbd";
  EXPECT_EQ(replace_invalid_utf8("abc\xc3\xa9"), "abc\xc3\xa9");
  EXPECT_EQ(replace_invalid_utf8("\xff"
                                 "a"),
            sign + "a");
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x91"), sign);
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x91"
                                 "a"),
            sign + "a");
  EXPECT_EQ(replace_invalid_utf8("\xe0\x80\x80"), sign + sign + sign);  // overlong: no start of three bytes
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), sign + sign + sign);  // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80"), sign + sign + sign + sign);
  EXPECT_EQ(replace_invalid_utf8("\xe4\xbd"
                                 "\xe4\xbd\xa0"),
            sign + "\xe4\xbd\xa0");
}

TEST(TokenizerUnicode, FindsUnfinishedCharacters) {
  EXPECT_EQ(unfinished_utf8_tail(""), 0U);
  EXPECT_EQ(unfinished_utf8_tail("abc"), 0U);
  EXPECT_EQ(unfinished_utf8_tail("\xe4\xbd\xa0"), 0U);
  EXPECT_EQ(unfinished_utf8_tail("a\xe4"), 1U);
  EXPECT_EQ(unfinished_utf8_tail("a\xe4\xbd"), 2U);
  EXPECT_EQ(unfinished_utf8_tail("\xf0\x9f\x91"), 3U);
  EXPECT_EQ(unfinished_utf8_tail("a\x80"), 0U);     // nothing starts there
  EXPECT_EQ(unfinished_utf8_tail("\xe0\x80"), 0U);  // can never become a character
  EXPECT_EQ(unfinished_utf8_tail("\xff"), 0U);
}

TEST(TokenizerBytes, EveryByteHasItsOwnSpelling) {
  std::string all, spelled;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    spelled += byte_spelling(static_cast<unsigned char>(byte));
  }
  EXPECT_EQ(try_bytes_of_spelling(spelled), all);
  EXPECT_EQ(byte_spelling(' '), "\xc4\xa0");
  EXPECT_EQ(byte_spelling('\n'), "\xc4\x8a");
  EXPECT_EQ(try_bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(try_bytes_of_spelling("\xe2\x96\x81"), std::nullopt);
}

}  // namespace
}  // namespace expertmesh::data
