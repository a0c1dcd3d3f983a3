// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over rank threads against one rank: same outputs and gradients however tokens and experts are
// spread.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/world.h"
#include "moe/choice_rule.h"
#include "moe/dispatcher.h"
#include "moe/test_problem.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

struct RankResult {
  Gradients grads;
  Routing routing;
};

// Rank r gets tokens [bounds[r], bounds[r + 1]) and its equal part of the experts.
std::vector<RankResult> run_ranks(const Problem& problem, const std::vector<int64_t>& bounds, std::string_view name) {
  const int ep_size = static_cast<int>(bounds.size()) - 1;
  const int64_t local = problem.sizes.experts / ep_size;
  std::vector<RankResult> results(static_cast<size_t>(ep_size));
  comm::run_threads(ep_size, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    at::set_num_threads(1);
    const size_t rank = static_cast<size_t>(world.rank());
    const int64_t first = world.rank() * local;
    const Problem own = problem.tokens(bounds[rank], bounds[rank + 1]).experts(first, first + local);
    const auto dispatcher = make_dispatcher(name);
    results[rank].grads = dispatcher_gradients(own, *dispatcher, world.all(), &results[rank].routing);
  });
  return results;
}

Gradients gather(const std::vector<RankResult>& results) {
  std::vector<at::Tensor> outs, hidden, weights, gate_up, down;
  for (const RankResult& result : results) {
    outs.push_back(result.grads.out);
    hidden.push_back(result.grads.hidden);
    weights.push_back(result.grads.weights);
    gate_up.push_back(result.grads.gate_up_proj);
    down.push_back(result.grads.down_proj);
  }
  return {at::cat(outs), at::cat(hidden), at::cat(weights), at::cat(gate_up), at::cat(down)};
}

class DispatchRanksTest : public testing::TestWithParam<std::string_view> {
 protected:
  DispatchRanksTest() { ops::TEST_poison_new_memory(true); }

  void expect_one_rank(const Problem& problem, const std::vector<int64_t>& bounds, double bound = 1e-6) {
    const auto world = comm::make_single_world();
    const Gradients one = dispatcher_gradients(problem, *make_dispatcher(GetParam()), world->all());
    const Gradients many = gather(run_ranks(problem, bounds, GetParam()));
    EXPECT_LT(max_difference(many.out, one.out), bound);
    EXPECT_LT(max_difference(many.hidden, one.hidden), bound);
    EXPECT_LT(max_difference(many.weights, one.weights), bound);
    EXPECT_LT(max_difference(many.gate_up_proj, one.gate_up_proj), bound);
    EXPECT_LT(max_difference(many.down_proj, one.down_proj), bound);
  }
};

// All choices of every token on experts [begin, end).
Problem with_choices_on(Problem problem, int64_t begin, int64_t end) {
  for (int64_t token = 0; token < problem.sizes.tokens; ++token) {
    for (int64_t k = 0; k < problem.sizes.top_k; ++k) {
      problem.ids_TK[token][k].fill_(begin + (token + k) % (end - begin));
    }
  }
  return problem;
}

TEST_P(DispatchRanksTest, EqualsOneRank) {
  const Problem problem = make_problem({48, 16, 12, 12, 3}, 1);
  expect_one_rank(problem, {0, 48});
  expect_one_rank(problem, {0, 20, 48});
  expect_one_rank(problem, {0, 5, 30, 48});  // 12 experts on 3 ranks
  expect_one_rank(problem, {0, 1, 7, 40, 48});
  expect_one_rank(make_problem({31, 60, 37, 6, 2}, 2), {0, 10, 31});
}

TEST_P(DispatchRanksTest, OneTokenBesideManyAndNone) {
  const Problem problem = make_problem({201, 16, 12, 8, 2}, 3);
  expect_one_rank(problem, {0, 1, 201});
  expect_one_rank(problem, {0, 201, 201});
  expect_one_rank(problem, {0, 0, 0, 1, 201});
}

// DISP-02: every token to the experts of rank 0; the others' gradients are exactly 0.
TEST_P(DispatchRanksTest, EverythingToOneRank) {
  const Problem problem = with_choices_on(make_problem({40, 16, 12, 8, 2}, 4), 0, 2);
  expect_one_rank(problem, {0, 10, 20, 30, 40});
  const std::vector<RankResult> results = run_ranks(problem, {0, 10, 20, 30, 40}, GetParam());
  for (size_t rank = 1; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].grads.gate_up_proj.abs().max().item<float>(), 0.0F);
    EXPECT_EQ(results[rank].grads.down_proj.abs().max().item<float>(), 0.0F);
  }
}

TEST_P(DispatchRanksTest, EverythingToOneExpert) {
  const Problem problem = with_choices_on(make_problem({30, 16, 12, 8, 1}, 5), 5, 6);
  expect_one_rank(problem, {0, 10, 30});
  expect_one_rank(problem, {0, 0, 10, 29, 30});
}

// DISP-04: 2 tokens a rank, most ranks get no row at all.
TEST_P(DispatchRanksTest, TwoTokensPerRank) { expect_one_rank(make_problem({8, 16, 12, 64, 2}, 6), {0, 2, 4, 6, 8}); }

TEST_P(DispatchRanksTest, Bf16StaysWithinRounding) {
  const Problem problem = make_problem({64, 32, 16, 8, 2}, 7).to(at::kBFloat16);
  const auto world = comm::make_single_world();
  const Gradients one = dispatcher_gradients(problem, *make_dispatcher(GetParam()), world->all());
  const Gradients many = gather(run_ranks(problem, {0, 16, 64}, GetParam()));
  EXPECT_LT(frobenius_difference(many.out, one.out), 1e-3);
  EXPECT_LT(frobenius_difference(many.hidden, one.hidden), 2e-3);
  EXPECT_LT(frobenius_difference(many.gate_up_proj, one.gate_up_proj), 2e-3);
}

TEST_P(DispatchRanksTest, SplitSizesAreKeptInRouting) {
  const Problem problem = make_problem({12, 16, 12, 4, 2}, 8);
  const std::vector<RankResult> results = run_ranks(problem, {0, 5, 12}, GetParam());
  for (size_t rank = 0; rank < 2; ++rank) {
    const Routing& routing = results[rank].routing;
    EXPECT_EQ(std::accumulate(routing.send_counts.begin(), routing.send_counts.end(), int64_t{0}),
              problem.sizes.top_k * (rank == 0 ? 5 : 7));
    EXPECT_EQ(routing.recv_counts[1 - rank], results[1 - rank].routing.send_counts[rank]);
    EXPECT_EQ(routing.tokens_per_source_SE.sum().item<int64_t>(),
              std::accumulate(routing.recv_counts.begin(), routing.recv_counts.end(), int64_t{0}));
  }
}

// A rank without gradient-carrying tokens still takes part: recompute with kept routing on both ranks.
TEST_P(DispatchRanksTest, RecomputeWithKeptRouting) {
  const Problem problem = make_problem({20, 16, 12, 8, 2}, 9);
  comm::run_threads(2, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    at::set_num_threads(1);
    const bool is_first = world.rank() == 0;
    const Problem own = problem.tokens(is_first ? 0 : 20, 20).experts(is_first ? 0 : 4, is_first ? 4 : 8);
    const auto dispatcher = make_dispatcher(GetParam());
    Routing routing;
    const Gradients first = dispatcher_gradients(own, *dispatcher, world.all(), &routing);
    const Gradients second = dispatcher_gradients(own, *dispatcher, world.all(), &routing);
    EXPECT_TRUE(bitwise_equal(first.out, second.out));
    EXPECT_TRUE(bitwise_equal(first.hidden, second.hidden));
    EXPECT_TRUE(bitwise_equal(first.gate_up_proj, second.gate_up_proj));
  });
}

INSTANTIATE_TEST_SUITE_P(Table, DispatchRanksTest, testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const DispatcherInfo& row : dispatchers()) names.push_back(row.name);
                           return names;
                         }()),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(ChoiceRuleRanks, NoneAndRankLimit) {
  comm::run_threads(2, {.timeout = std::chrono::seconds(60)}, [](comm::World& world) {
    const ChoiceRule none = make_choice_rule("none:1", 8, 2, world.all());
    EXPECT_EQ(none.excluded.begin, 4);
    EXPECT_EQ(none.excluded.end, 8);
    EXPECT_EQ(make_choice_rule("none:0@1", 8, 2, world.all()).excluded.size(), world.rank() == 1 ? 4 : 0);
  });
}

}  // namespace
}  // namespace expertmesh::moe
