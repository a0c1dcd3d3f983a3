// SPDX-License-Identifier: Apache-2.0
#include "moe/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

namespace expertmesh::moe {
namespace {

WorkloadShape shape_of(Workload workload, int ranks = 4) {
  return {.workload = workload, .ranks = ranks, .tokens = 200, .experts = 24, .top_k = 4};
}

double max_over_mean(const std::vector<int64_t>& rows) {
  const auto sum = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  return static_cast<double>(*std::max_element(rows.begin(), rows.end())) * static_cast<double>(rows.size()) / sum;
}

double imbalance(Workload workload, int step = 0) { return max_over_mean(workload_rows(shape_of(workload), step)); }

class Workloads : public testing::TestWithParam<WorkloadInfo> {};

TEST_P(Workloads, GiveEachTokenDistinctExperts) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const WorkloadShape shape = shape_of(GetParam().workload, ranks);
    int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t tokens = workload_tokens(shape, rank);
      all += tokens;
      for (int step = 0; step < 4; ++step) {
        const std::vector<int64_t> ids = workload_ids(shape, rank, step);
        ASSERT_EQ(static_cast<int64_t>(ids.size()), tokens * shape.top_k);
        for (size_t at = 0; at < ids.size(); at += 4) {
          const std::set<int64_t> of_token(ids.begin() + static_cast<int64_t>(at),
                                           ids.begin() + static_cast<int64_t>(at) + 4);
          ASSERT_EQ(of_token.size(), 4U);
          ASSERT_GE(*of_token.begin(), 0);
          ASSERT_LT(*of_token.rbegin(), shape.experts);
        }
        EXPECT_EQ(ids, workload_ids(shape, rank, step)) << "another time, other experts";
      }
    }
    EXPECT_EQ(all, shape.tokens * ranks);
  }
}

TEST_P(Workloads, ChangeWithStepRankAndSeed) {
  WorkloadShape shape = shape_of(GetParam().workload, 3);
  const std::vector<int64_t> ids = workload_ids(shape, 0, 0);
  EXPECT_NE(ids, workload_ids(shape, 0, 1));
  EXPECT_NE(ids, workload_ids(shape, 1, 0));
  shape.seed = 2;
  EXPECT_NE(ids, workload_ids(shape, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(All, Workloads, testing::ValuesIn(workloads().begin(), workloads().end()),
                         [](const auto& instance) {
                           std::string name(instance.param.name);
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST(Workload, LoadsAreWhatTheNamesSay) {
  EXPECT_LT(imbalance(Workload::kBalanced), 1.1);
  EXPECT_LT(imbalance(Workload::kHotExperts), 1.1) << "the hot experts are on all ranks";
  EXPECT_NEAR(imbalance(Workload::kHotRank), 2.5, 0.1);  // half of the rows, and a quarter of the other half
  EXPECT_EQ(imbalance(Workload::kSpread), 1.0);
  EXPECT_LT(imbalance(Workload::kRagged), 1.1);
  EXPECT_LT(imbalance(Workload::kBurst, 2), 1.1);
  EXPECT_NEAR(imbalance(Workload::kBurst, 3), 3.25, 0.1);
  EXPECT_LT(imbalance(Workload::kBurst, 4), 1.1);
}

TEST(Workload, HotExpertsTakeHalfOfTheRows) {
  const WorkloadShape shape{.workload = Workload::kHotExperts, .ranks = 2, .tokens = 400, .experts = 32, .top_k = 4};
  std::vector<int64_t> counts(32, 0);
  for (const int64_t id : workload_ids(shape, 1, 0)) ++counts[static_cast<size_t>(id)];
  std::sort(counts.rbegin(), counts.rend());
  EXPECT_GT(std::accumulate(counts.begin(), counts.begin() + 4, int64_t{0}), 1600 / 2);
  EXPECT_LT(counts[4], 60);
}

TEST(Workload, TheHotRankRotates) {
  const WorkloadShape shape = shape_of(Workload::kRotating);
  for (int step = 0; step < 6; ++step) {
    const std::vector<int64_t> rows = workload_rows(shape, step);
    EXPECT_EQ(std::max_element(rows.begin(), rows.end()) - rows.begin(), step % 4);
  }
}

TEST(Workload, SpreadTokensVisitAsManyRanksAsTheyCan) {
  for (const int ranks : {2, 3, 8}) {
    const std::vector<int64_t> ids = workload_ids(shape_of(Workload::kSpread, ranks), 0, 0);
    for (size_t at = 0; at < ids.size(); at += 4) {
      std::set<int64_t> visited;
      for (size_t k = 0; k < 4; ++k) visited.insert(ids[at + k] / (24 / ranks));
      ASSERT_EQ(visited.size(), static_cast<size_t>(std::min(4, ranks)));
    }
  }
}

TEST(Workload, TokensOfTheSources) {
  EXPECT_EQ(workload_tokens(shape_of(Workload::kRagged, 2), 0), 133);
  EXPECT_EQ(workload_tokens(shape_of(Workload::kRagged, 2), 1), 267);
  EXPECT_EQ(workload_tokens(shape_of(Workload::kEmptyRank, 3), 2), 0);
  EXPECT_EQ(workload_tokens(shape_of(Workload::kEmptyRank, 3), 0), 300);
  EXPECT_EQ(workload_tokens(shape_of(Workload::kEmptyRank, 1), 0), 200);
}

}  // namespace
}  // namespace expertmesh::moe
