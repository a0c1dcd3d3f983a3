// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_vocabulary.h"

#include <gtest/gtest.h>

namespace expertmesh::data {
namespace {

TEST(Vocabulary, FindsByIdAndSpelling) {
  Vocabulary words;
  EXPECT_EQ(words.find_spelling("a"), nullptr);
  EXPECT_EQ(words.find_id(0), nullptr);
  for (int32_t i = 5000; i-- > 0;) ASSERT_TRUE(words.add({"t" + std::to_string(i), "b", i * 3, false}));
  EXPECT_FALSE(words.add({"t7", "c", 999999, false}));
  ASSERT_FALSE(words.freeze());
  EXPECT_EQ(words.size(), 5000U);
  for (int32_t i = 0; i < 5000; ++i) {
    const std::string spelling = "t" + std::to_string(i);
    ASSERT_NE(words.find_spelling(spelling), nullptr);
    EXPECT_EQ(words.find_spelling(spelling)->id, i * 3);
    ASSERT_NE(words.find_id(i * 3), nullptr);
    EXPECT_EQ(words.find_id(i * 3)->spelling, spelling);
    EXPECT_EQ(words.find_id(i * 3 + 1), nullptr);
  }
  EXPECT_EQ(words.find_id(-3), nullptr);
}

TEST(Vocabulary, ReportsAnIdThatIsThereTwice) {
  Vocabulary words;
  words.add({"a", "a", 5, false});
  words.add({"b", "b", 1, false});
  words.add({"c", "c", 5, false});
  const auto clash = words.freeze();
  ASSERT_TRUE(clash);
  EXPECT_EQ(clash->first, "a");
  EXPECT_EQ(clash->second, "c");
  EXPECT_EQ(clash->id, 5);
}

TEST(Vocabulary, EditsBeforeFreezing) {
  Vocabulary words;
  EXPECT_EQ(words.edit("a"), nullptr);
  words.add({"a", "a", 0, false});
  words.edit("a")->is_special = true;
  ASSERT_FALSE(words.freeze());
  EXPECT_TRUE(words.find_id(0)->is_special);
}

}  // namespace
}  // namespace expertmesh::data
