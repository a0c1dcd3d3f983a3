// SPDX-License-Identifier: Apache-2.0
#include "data/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace expertmesh::data {
namespace {

std::array<int32_t, 256> bytes_as_ids() {
  std::array<int32_t, 256> out{};
  for (size_t byte = 0; byte < out.size(); ++byte) out[byte] = static_cast<int32_t>(byte);
  return out;
}

BpeMerges small_merges() { return BpeMerges({{'a', 'b', 256}, {256, 'c', 257}, {'b', 'c', 258}}); }

std::vector<int32_t> encode(const Bpe& bpe, std::string_view word, BpeWorkspace& workspace) {
  std::vector<int32_t> out;
  bpe.encode_word(word, workspace, out);
  return out;
}

TEST(Bpe, MergesTheLowestRankFirst) {
  const Bpe bpe(small_merges(), bytes_as_ids());
  BpeWorkspace workspace(bpe.merges());
  EXPECT_EQ(encode(bpe, "abc", workspace), (std::vector<int32_t>{257}));
  EXPECT_EQ(encode(bpe, "bcab", workspace), (std::vector<int32_t>{258, 256}));
  EXPECT_EQ(encode(bpe, "\xff", workspace), (std::vector<int32_t>{255}));
}

// Lengths on both sides of what is cached and scanned; the second call may come from the cache.
TEST(Bpe, TheSameWithAndWithoutCache) {
  const Bpe bpe(small_merges(), bytes_as_ids());
  BpeWorkspace workspace(bpe.merges());
  std::mt19937 dice(1);
  for (int round = 0; round < 3000; ++round) {
    std::string word;
    const size_t length = 1 + dice() % (round % 10 == 0 ? 300 : 40);
    for (size_t i = 0; i < length; ++i) word.push_back("abcd"[dice() % 4]);
    BpeWorkspace fresh(bpe.merges());
    const auto wanted = encode(bpe, word, fresh);
    ASSERT_EQ(encode(bpe, word, workspace), wanted) << word;
    ASSERT_EQ(encode(bpe, word, workspace), wanted) << word;
  }
}

TEST(Bpe, ZeroBytesInWordsAreBytes) {
  const Bpe bpe(small_merges(), bytes_as_ids());
  BpeWorkspace workspace(bpe.merges());
  const std::string one(2, '\0'), two(3, '\0');
  EXPECT_EQ(encode(bpe, one, workspace).size(), 2U);
  EXPECT_EQ(encode(bpe, two, workspace).size(), 3U);
  EXPECT_EQ(encode(bpe, one, workspace).size(), 2U);
}

TEST(Bpe, WholeWordsGoBeforeMerges) {
  Vocabulary words;
  words.add({"bca", {}, 900, false});
  const Bpe bpe(small_merges(), bytes_as_ids(), std::move(words));
  BpeWorkspace workspace(bpe.merges());
  EXPECT_EQ(encode(bpe, "bca", workspace), (std::vector<int32_t>{900}));
  EXPECT_EQ(encode(bpe, "bcab", workspace), (std::vector<int32_t>{258, 256}));
}

}  // namespace
}  // namespace expertmesh::data
