// SPDX-License-Identifier: Apache-2.0
#include "moe/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace expertmesh::moe {
namespace {

using testing::ElementsAre;

std::vector<int64_t> top(const std::vector<float>& probs, int64_t num_experts, int64_t top_k,
                         ExcludedExperts excluded = {}) {
  std::vector<int64_t> ids(probs.size() / static_cast<size_t>(num_experts) * static_cast<size_t>(top_k), -1);
  select_top_k(probs, num_experts, top_k, excluded, ids);
  return ids;
}

TEST(TopK, MostProbableFirst) { EXPECT_THAT(top({0.1F, 0.4F, 0.2F, 0.3F}, 4, 3), ElementsAre(1, 3, 2)); }

TEST(TopK, TiesGoToTheLowerExpert) {
  EXPECT_THAT(top({0.25F, 0.25F, 0.25F, 0.25F}, 4, 2), ElementsAre(0, 1));
  EXPECT_THAT(top({0.1F, 0.3F, 0.3F, 0.3F}, 4, 2), ElementsAre(1, 2));
  EXPECT_THAT(top({0.2F, 0.5F, 0.2F, 0.1F}, 4, 2), ElementsAre(1, 0));
}

TEST(TopK, EachTokenOnItsOwn) {
  EXPECT_THAT(top({0.6F, 0.4F, 0.1F, 0.9F, 0.5F, 0.5F}, 2, 1), ElementsAre(0, 1, 0));
  EXPECT_THAT(top({}, 4, 2), ElementsAre());
}

TEST(TopK, ExcludedExpertsAreNeverChosen) {
  EXPECT_THAT(top({0.5F, 0.3F, 0.15F, 0.05F}, 4, 2, {0, 2}), ElementsAre(2, 3));
}

TEST(TopK, NanNeverWinsAndIdsStayDistinct) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(top({nan, 0.1F, nan, 0.2F}, 4, 2), ElementsAre(3, 1));
  EXPECT_THAT(top({nan, nan, nan, nan}, 4, 2), ElementsAre(0, 1));
}

TEST(TopK, BalancedGivesEqualLoad) {
  std::vector<int64_t> ids(6 * 2);
  select_balanced(4, 2, ids);
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
}

}  // namespace
}  // namespace expertmesh::moe
