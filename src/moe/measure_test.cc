// SPDX-License-Identifier: Apache-2.0
#include "moe/measure.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/world.h"
#include "moe/dispatcher.h"

namespace expertmesh::moe {
namespace {

// Two ep groups of two: all four ranks have the same times.
TEST(Measure, AllRanksSeeTheSameTimes) {
  std::vector<std::vector<DispatcherTime>> times(4);
  comm::run_threads(4, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto ep = world.make_group("ep", {{0, 1}, {2, 3}});
    const LayerShape shape{.tokens = 20 + world.rank(), .hidden = 16, .width = 8, .experts = 4, .top_k = 2};
    times[static_cast<size_t>(world.rank())] = measure_dispatchers(shape, *ep, world.all(), 0.01);
  });
  ASSERT_EQ(times[0].size(), dispatchers().size());
  for (size_t i = 0; i < times[0].size(); ++i) {
    EXPECT_EQ(times[0][i].name, dispatchers()[i].name);
    EXPECT_GT(times[0][i].milliseconds, 0);
    for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(times[rank][i].milliseconds, times[0][i].milliseconds);
  }
}

TEST(Measure, TheFirstOfThoseThatAreAsFast) {
  EXPECT_EQ(fastest({{"a", 3.0}, {"b", 2.0}, {"c", 2.5}}), "b");
  EXPECT_EQ(fastest({{"a", 2.03}, {"b", 2.0}, {"c", 1.99}}), "b");
  EXPECT_EQ(fastest({{"a", 5.0}}), "a");
  EXPECT_EQ(times_text({{"a", 3.0}, {"b", 2.125}}), "a 3.00 ms, b 2.12 ms");
}

}  // namespace
}  // namespace expertmesh::moe
