// SPDX-License-Identifier: Apache-2.0
// Every dispatcher on rank threads under every workload. tests/dist has the same with processes.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "moe/test_workload_grid.h"
#include "ops/new_tensor.h"
#include "ops/rank_thread.h"

namespace expertmesh::moe {
namespace {

class DispatchWorkloads : public testing::TestWithParam<int> {};

TEST_P(DispatchWorkloads, EqualEager) {
  ops::TEST_poison_new_memory(true);
  comm::run_threads(GetParam(), {.timeout = std::chrono::seconds(120)}, [](comm::World& world) {
    ops::begin_rank_thread(1);
    expect_all_as_eager(world, candidates(), 5);
  });
}

// What the others are compared with, itself against one rank.
TEST_P(DispatchWorkloads, EagerEqualsOneRank) {
  const auto one_rank = comm::make_single_world();
  const auto eager = make_dispatcher("eager");
  for (const WorkloadCase& one : workload_cases(GetParam(), 5)) {
    const Problem whole = problem_of(one);
    const std::vector<int64_t> bounds = bounds_of(one.shape);
    const Gradients expected = dispatcher_gradients(whole, *eager, one_rank->all());
    const int64_t local = one.shape.experts / one.shape.ranks;
    comm::run_threads(GetParam(), {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
      ops::begin_rank_thread(1);
      const auto rank = static_cast<size_t>(world.rank());
      const auto rows = [&](const at::Tensor& all) { return all.slice(0, bounds[rank], bounds[rank + 1]); };
      const auto experts = [&](const at::Tensor& all) {
        return all.slice(0, world.rank() * local, (world.rank() + 1) * local);
      };
      // Parts of the whole tensors' largest values: a rank's own may be small.
      const Gradients got =
          dispatcher_gradients(part_of(whole, bounds, world.rank()), *eager, *everyone(world, /*apart=*/false));
      const auto expect = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& all) {
        if (a.numel() == 0) return;
        const double bound = 1e-6 * all.abs().max().item<double>();
        EXPECT_LT((a - b).abs().max().item<double>(), bound) << one.text();
      };
      expect(got.out, rows(expected.out), expected.out);
      expect(got.hidden, rows(expected.hidden), expected.hidden);
      expect(got.weights, rows(expected.weights), expected.weights);
      expect(got.gate_up_proj, experts(expected.gate_up_proj), expected.gate_up_proj);
      expect(got.down_proj, experts(expected.down_proj), expected.down_proj);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DispatchWorkloads, testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace expertmesh::moe
