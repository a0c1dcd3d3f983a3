// SPDX-License-Identifier: Apache-2.0
#include "moe/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/world.h"
#include "moe/dispatch_domino.h"
#include "ops/rank_thread.h"

namespace expertmesh::moe {
namespace {

// Two ep groups of two: all four ranks have the same times.
TEST(Measure, AllRanksSeeTheSameTimes) {
  std::vector<std::vector<ContenderTime>> times(4);
  const std::vector<Contender> all = contenders({}, /*shares_memory=*/true);
  comm::run_threads(4, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    ops::begin_rank_thread(1);
    const auto ep = world.make_group("ep", {{0, 1}, {2, 3}});
    const LayerShape shape{.tokens = 20 + world.rank(), .hidden = 16, .width = 8, .experts = 4, .top_k = 2};
    times[static_cast<size_t>(world.rank())] = measure_dispatchers(shape, all, *ep, world.all(), 0.01);
  });
  ASSERT_EQ(times[0].size(), all.size());
  for (size_t i = 0; i < times[0].size(); ++i) {
    EXPECT_EQ(times[0][i].contender, all[i]);
    EXPECT_GT(times[0][i].milliseconds, 0);
    for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(times[rank][i].milliseconds, times[0][i].milliseconds);
  }
}

TEST(Measure, TheFirstOfThoseThatAreAsFast) {
  const auto first = [](const std::vector<ContenderTime>& times) { return fastest(times).name; };
  EXPECT_EQ(first({{{"a"}, 3.0}, {{"b"}, 2.0}, {{"c"}, 2.5}}), "b");
  EXPECT_EQ(first({{{"a"}, 2.03}, {{"b"}, 2.0}, {{"c"}, 1.99}}), "b");
  EXPECT_EQ(first({{{"a"}, 5.0}}), "a");
  EXPECT_EQ(times_text({{{"a"}, 3.0}, {{"a", {.dedup = false}}, 2.125}}), "a 3.00 ms, a-no-dedup 2.12 ms");
}

TEST(Measure, WhatRunsAsFusedIsNotMeasured) {
  const auto labels = [](int64_t tokens, bool shares_memory) {
    std::vector<std::string> result;
    const LayerShape shape{.tokens = tokens, .hidden = 16, .width = 8, .experts = 16, .top_k = 4};
    for (const Contender& contender : distinct(contenders(true, shares_memory), shape, shares_memory)) {
      result.push_back(contender.label());
    }
    return result;
  };
  EXPECT_THAT(labels(2 * kMinDominoSliceTokens - 1, true), testing::ElementsAre("eager", "fused", "mc2"));
  EXPECT_THAT(labels(2047, false), testing::ElementsAre("eager", "fused"));
  EXPECT_THAT(labels(2048, false), testing::ElementsAre("eager", "fused", "mc2"));
  EXPECT_THAT(labels(2 * kMinDominoSliceTokens, false), testing::ElementsAre("eager", "fused", "mc2", "domino"));
}

TEST(Measure, FusedRunsTwiceWhereDedupIsOpen) {
  const auto labels = [](std::optional<bool> dedup, bool shares_memory) {
    std::vector<std::string> result;
    for (const Contender& contender : contenders(dedup, shares_memory)) result.push_back(contender.label());
    return result;
  };
  EXPECT_THAT(labels({}, true), testing::ElementsAre("eager", "fused", "fused-no-dedup", "mc2", "domino"));
  EXPECT_THAT(labels(true, true), testing::ElementsAre("eager", "fused", "mc2", "domino"));
  EXPECT_THAT(labels(false, true), testing::ElementsAre("eager", "fused-no-dedup", "mc2", "domino-no-dedup"));
  EXPECT_THAT(labels(false, false), testing::Contains("mc2-no-dedup"));
}

}  // namespace
}  // namespace expertmesh::moe
