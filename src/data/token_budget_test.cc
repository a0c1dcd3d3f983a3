// SPDX-License-Identifier: Apache-2.0
#include "data/token_budget.h"

#include <gmock/gmock.h>

#include <random>
#include <vector>

#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Groups = std::vector<std::vector<int64_t>>;

// All micro batches that `lengths` fill, as lengths; what is left of an unfinished one is not returned.
Groups fill(bool is_packed, int64_t budget_tokens, const std::vector<int64_t>& lengths) {
  Groups groups;
  std::vector<int64_t> open;
  TokenBudget budget(is_packed, budget_tokens);
  const auto close = [&] {
    groups.push_back(open);
    open.clear();
    budget = TokenBudget(is_packed, budget_tokens);
  };
  for (const int64_t length : lengths) {
    if (!budget.try_take(length)) {
      close();
      EXPECT_TRUE(budget.try_take(length));
    }
    open.push_back(length);
    if (budget.is_closed()) close();
  }
  return groups;
}

constexpr bool kPadded = false, kPacked = true;

// CP-16: cutoff_len 10, micro_batch_size 2.
TEST(TokenBudget, GivesUpstreamsGroups) {
  const base::Json input = testing::read_json(testing::source_path("tests/cases/values/batches.json"));
  const base::Json all = testing::read_json(testing::source_path("tests/cases/values/expected.json"));
  const base::Json& expected = *all.find("batches.json")->find("ok");
  std::vector<int64_t> lengths;
  for (const base::Json& row : *input.find("input")->find("dynamic")->try_array()) {
    lengths.push_back(*(*row.try_array())[1].try_int64());
  }
  for (const bool is_packed : {kPadded, kPacked}) {
    const base::Json& wanted = *expected.find(is_packed ? "dynamic_padding_free" : "dynamic_batching");
    const Groups groups = fill(is_packed, 20, lengths);
    ASSERT_FALSE(groups.empty());
    const auto count = static_cast<int64_t>(groups[0].size());
    EXPECT_EQ(count, *wanted.find("samples")->try_int64());
    EXPECT_EQ(static_cast<int64_t>(lengths.size()) - count, *wanted.find("left_over")->try_int64());
  }
}

TEST(TokenBudget, PaddedClosesBeforeOrAtTheBudget) {
  EXPECT_THAT(fill(kPadded, 20, {3, 4, 6, 2, 8, 9}), ElementsAre(ElementsAre(3, 4, 6), ElementsAre(2, 8)));
  EXPECT_THAT(fill(kPadded, 20, {10, 1, 5}), ElementsAre(ElementsAre(10, 1)));            // 2 x 10: full at once
  EXPECT_THAT(fill(kPadded, 20, {5, 5, 5, 5, 5}), ElementsAre(ElementsAre(5, 5, 5, 5)));  // 4 x 5
  EXPECT_THAT(fill(kPadded, 20, {1, 1, 1, 10}), ElementsAre(ElementsAre(1, 1, 1)));       // 4 x 10 would be 40
  EXPECT_THAT(fill(kPadded, 20, {9, 9, 9}), ElementsAre(ElementsAre(9, 9)));              // 18, then 27
  EXPECT_THAT(fill(kPadded, 20, {20, 1}), ElementsAre(ElementsAre(20)));                  // one sample is enough
  EXPECT_THAT(fill(kPadded, 3, {1, 1, 1, 2, 3, 1}), ElementsAre(ElementsAre(1, 1, 1), ElementsAre(2), ElementsAre(3)));
}

TEST(TokenBudget, PackedWaitsForASampleTooMany) {
  EXPECT_THAT(fill(kPacked, 20, {3, 4, 6, 2, 8, 9}), ElementsAre(ElementsAre(3, 4, 6, 2)));
  EXPECT_THAT(fill(kPacked, 20, {10, 10}), IsEmpty());  // exactly full, still open
  EXPECT_THAT(fill(kPacked, 20, {10, 10, 1}), ElementsAre(ElementsAre(10, 10)));
  EXPECT_THAT(fill(kPacked, 20, {20, 20, 20}), ElementsAre(ElementsAre(20), ElementsAre(20)));
  EXPECT_THAT(fill(kPacked, 20, {19, 0, 1, 0, 1}), ElementsAre(ElementsAre(19, 0, 1, 0)));  // empty ones cost nothing
  EXPECT_THAT(fill(kPacked, 20, {6}), IsEmpty());
}

// Against the rules in other words: the longest prefix whose cost stays within the budget, over random lengths.
TEST(TokenBudget, TakesTheLongestPrefixThatFits) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const int64_t cutoff = 1 + random() % 40, budget_tokens = cutoff * (1 + random() % 5);
    std::vector<int64_t> lengths(30);
    for (int64_t& length : lengths) length = 1 + random() % static_cast<uint32_t>(cutoff);
    for (const bool is_packed : {kPadded, kPacked}) {
      const auto cost = [&](size_t begin, size_t end) {
        int64_t sum = 0, longest = 0;
        for (size_t i = begin; i < end; ++i) {
          sum += lengths[i];
          longest = std::max(longest, lengths[i]);
        }
        return is_packed ? sum : longest * static_cast<int64_t>(end - begin);
      };
      size_t begin = 0;
      for (const auto& group : fill(is_packed, budget_tokens, lengths)) {
        const size_t end = begin + group.size();
        EXPECT_LE(cost(begin, end), budget_tokens);
        const bool is_full = !is_packed && cost(begin, end) == budget_tokens;
        EXPECT_TRUE(is_full || (end < lengths.size() && cost(begin, end + 1) > budget_tokens)) << begin << " " << end;
        begin = end;
      }
    }
  }
}

}  // namespace
}  // namespace expertmesh::data
