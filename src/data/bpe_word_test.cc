// SPDX-License-Identifier: Apache-2.0
// Both ways of merging a word against the plainest one: look at all pairs, merge the best, start again.
#include "data/bpe_word.h"

#include <gtest/gtest.h>

#include <random>

namespace expertmesh::data {
namespace {

std::vector<int32_t> merge_plainly(const BpeMerges& merges, std::vector<int32_t> ids) {
  while (true) {
    uint32_t best = BpeMerges::kNone;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const uint32_t rank = merges.rank(ids[i], ids[i + 1]);
      if (rank < best) {
        best = rank;
        place = i;
      }
    }
    if (best == BpeMerges::kNone) return ids;
    ids[place] = merges.merge(best).result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

// Merges over `letters` single ids; each makes a new id of two that are there. Shuffled, a merge may come before those
// that make its parts, as in a file that nobody trained.
BpeMerges random_merges(std::mt19937& dice, int32_t letters, int32_t count, bool shuffled) {
  std::vector<BpeMerge> list;
  for (int32_t i = 0; i < count; ++i) {
    BpeMerge merge;
    bool is_new = false;
    while (!is_new) {
      merge = {static_cast<int32_t>(dice() % static_cast<uint32_t>(letters + i)),
               static_cast<int32_t>(dice() % static_cast<uint32_t>(letters + i)), letters + i};
      is_new = true;
      for (const BpeMerge& other : list) {
        if (other.left == merge.left && other.right == merge.right) is_new = false;
      }
    }
    list.push_back(merge);
  }
  if (shuffled) std::shuffle(list.begin(), list.end(), dice);
  return BpeMerges(std::move(list));
}

void compare_all(bool shuffled, uint32_t seed) {
  std::mt19937 dice(seed);
  const auto letters = static_cast<int32_t>(1 + dice() % 4);
  const BpeMerges merges = random_merges(dice, letters, static_cast<int32_t>(1 + dice() % 40), shuffled);
  LongWordMerger merger(merges);
  for (const size_t length : {0, 1, 2, 3, 5, 17, 100, 192, 193, 700}) {
    std::vector<int32_t> ids(length);
    for (int32_t& id : ids) id = static_cast<int32_t>(dice() % static_cast<uint32_t>(letters));
    const std::vector<int32_t> wanted = merge_plainly(merges, ids);
    std::vector<int32_t> got = {-7};
    merger.merge(ids, got);
    ASSERT_EQ(got.front(), -7) << "what was there must stay";
    got.erase(got.begin());
    ASSERT_EQ(got, wanted) << "long, " << length << " ids, seed " << seed;
    if (length > kMaxScannedWord) continue;
    std::vector<int32_t> scanned = ids;
    scanned.resize(merge_short_word(merges, scanned.data(), scanned.size()));
    ASSERT_EQ(scanned, wanted) << "short, " << length << " ids, seed " << seed;
  }
}

TEST(BpeWord, BothWaysEqualThePlainOne) {
  for (uint32_t seed = 0; seed < 150; ++seed) compare_all(false, seed);
}

TEST(BpeWord, BothWaysEqualThePlainOneWithRanksInAnyOrder) {
  for (uint32_t seed = 0; seed < 150; ++seed) compare_all(true, seed);
}

TEST(BpeWord, NoMergesLeaveTheWord) {
  const BpeMerges none;
  LongWordMerger merger(none);
  std::vector<int32_t> out;
  merger.merge(std::vector<int32_t>{3, 1, 2}, out);
  EXPECT_EQ(out, (std::vector<int32_t>{3, 1, 2}));
}

// Half a second; a quadratic way would need hours, and meet the time limit of the program of tests.
TEST(BpeWord, AWordOfMegabytes) {
  const BpeMerges doubling({{0, 0, 1}, {1, 1, 2}, {2, 2, 3}, {3, 3, 4}});
  LongWordMerger merger(doubling);
  std::vector<int32_t> out;
  merger.merge(std::vector<int32_t>(1 << 22, 0), out);
  EXPECT_EQ(out, std::vector<int32_t>(1 << 18, 4));
}

}  // namespace
}  // namespace expertmesh::data
