// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over Gloo processes under every workload, against eager on the same processes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/testing/processes.h"
#include "moe/test_workload_grid.h"
#include "ops/new_tensor.h"
#include "ops/rank_thread.h"

namespace expertmesh::moe {
namespace {

// The table, and what it does with many tokens; processes are apart as they are.
std::vector<Candidate> process_candidates() {
  std::vector<Candidate> result;
  for (const Candidate& candidate : candidates()) {
    if (!candidate.apart || candidate.name.ends_with("_no_dedup")) result.push_back(candidate);
  }
  for (Candidate& candidate : result) candidate.apart = false;
  return result;
}

class DispatchProcesses : public testing::TestWithParam<int> {};

TEST_P(DispatchProcesses, EqualEager) {
  const auto results = comm::testing::run_processes(GetParam(), [](int) {
    ops::begin_rank_thread(1);
    ops::TEST_poison_new_memory(true);
    const comm::WorldOptions options{.timeout = std::chrono::seconds(60), .setup_timeout = std::chrono::seconds(60)};
    try {
      const auto world = comm::try_join_launcher(options);
      comm::run_rank(*world, options, [](comm::World& joined) {
        EXPECT_EQ(joined.engine(), "gloo");
        expect_all_as_eager(joined, process_candidates(), 5);
      });
      return 0;
    } catch (const base::Error& error) {
      std::fprintf(stderr, "%s\n", error.text().c_str());
      return static_cast<int>(error.code());
    }
  });
  for (const comm::testing::ProcessResult& result : results) EXPECT_EQ(result.code, 0) << result.output;
}

INSTANTIATE_TEST_SUITE_P(Gloo, DispatchProcesses, testing::Values(2, 3));

}  // namespace
}  // namespace expertmesh::moe
