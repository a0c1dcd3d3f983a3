// SPDX-License-Identifier: Apache-2.0
// The suite over the engines of one process.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "comm/testing/suite.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

using testing::Check;

// Ranks; 0 = the single engine.
struct Case {
  int ranks;
  Check check;
};

class Engines : public ::testing::TestWithParam<Case> {};

TEST_P(Engines, Suite) {
  const Case& test = GetParam();
  if (test.ranks == 0) {
    const auto world = make_single_world();
    EXPECT_EQ(world->engine(), "single");
    test.check.run(*world);
    return;
  }
  std::atomic<int> num_ran = 0;
  run_threads(test.ranks, {.timeout = std::chrono::seconds(60)}, [&](World& world) {
    EXPECT_EQ(world.size(), test.ranks);
    test.check.run(world);
    ++num_ran;
  });
  EXPECT_EQ(num_ran, test.ranks);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int ranks : {0, 1, 2, 3, 4, 6, 8}) {
    for (const Check& check : testing::all_checks()) cases.push_back({ranks, check});
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const std::string engine = info.param.ranks == 0 ? "Single" : "Threads" + std::to_string(info.param.ranks);
  return engine + info.param.check.name;
}

INSTANTIATE_TEST_SUITE_P(Comm, Engines, ::testing::ValuesIn(all_cases()), case_name);

// Far more ranks than cores, many times the same.
TEST(Threads, RepeatsToTheBit) {
  for (const int ranks : {2, 3, 16}) {
    std::vector<uint64_t> seen;
    for (int round = 0; round < 3; ++round) {
      std::atomic<uint64_t> hash = 0;
      run_threads(ranks, {}, [&](World& world) {
        const uint64_t mine = testing::digest(world);
        if (world.rank() == 0) hash = mine;
      });
      seen.push_back(hash);
    }
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(seen[0], seen[2]);
  }
}

}  // namespace
}  // namespace expertmesh::comm
