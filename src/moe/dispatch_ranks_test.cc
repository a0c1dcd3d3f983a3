// SPDX-License-Identifier: Apache-2.0
// Every dispatcher over rank threads, with the memory of their peers and without, against one rank and against eager:
// same outputs and gradients however tokens and experts are spread.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "moe/choice_rule.h"
#include "moe/dispatch_domino.h"
#include "moe/dispatch_mc2.h"
#include "moe/expert_mlp.h"
#include "moe/test_ranks.h"
#include "ops/new_tensor.h"
#include "ops/rank_thread.h"

namespace expertmesh::moe {
namespace {

const Candidate kEager{"eager", [](const DispatcherOptions& options) { return make_dispatcher("eager", options); }};

struct RankResult {
  Gradients grads;
  Routing routing;
};

// Calls body(rank's part of the problem, dispatcher, group) on as many ranks as bounds has gaps: rank r gets tokens
// [bounds[r], bounds[r + 1]) and its equal part of the experts.
template <typename Body>
void on_ranks(const Problem& problem, const std::vector<int64_t>& bounds, const Candidate& candidate,
              const Body& body) {
  const int ep_size = static_cast<int>(bounds.size()) - 1;
  comm::run_threads(ep_size, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    ops::begin_rank_thread(1);
    const std::shared_ptr<comm::Group> ep = everyone(world, candidate.apart);
    body(part_of(problem, bounds, world.rank()), *candidate.dispatcher(), *ep);
  });
}

std::vector<RankResult> run_ranks(const Problem& problem, const std::vector<int64_t>& bounds,
                                  const Candidate& candidate) {
  std::vector<RankResult> results(bounds.size() - 1);
  on_ranks(problem, bounds, candidate, [&](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    RankResult& result = results[static_cast<size_t>(ep.rank())];
    result.grads = dispatcher_gradients(own, dispatcher, ep, &result.routing);
  });
  return results;
}

void expect_same_bits(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(bitwise_equal(a.out, b.out));
  EXPECT_TRUE(bitwise_equal(a.hidden, b.hidden));
  EXPECT_TRUE(bitwise_equal(a.weights, b.weights));
  EXPECT_TRUE(bitwise_equal(a.gate_up_proj, b.gate_up_proj));
  EXPECT_TRUE(bitwise_equal(a.down_proj, b.down_proj));
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

class DispatchRanksTest : public testing::TestWithParam<Candidate> {
 protected:
  DispatchRanksTest() { ops::TEST_poison_new_memory(true); }

  // As one rank, and as eager on the same ranks.
  void expect_one_rank(const Problem& problem, const std::vector<int64_t>& bounds, double bound = 1e-6) {
    const auto world = comm::make_single_world();
    const Gradients one = dispatcher_gradients(problem, *make_dispatcher("eager"), world->all());
    const Gradients many = gather(run_ranks(problem, bounds, GetParam()));
    expect_near(many, one, bound);
    expect_near(many, gather(run_ranks(problem, bounds, kEager)), bound);
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
  expect_one_rank(make_problem({40, 16, 12, 8, 3}, 10), {0, 1, 5, 6, 20, 20, 31, 39, 40});
  expect_one_rank(make_problem({24, 16, 12, 8, 8}, 11), {0, 9, 24});  // each token at every expert
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

// Groups of 0, 1, 7, 8 and 0 rows.
TEST_P(DispatchRanksTest, EmptyAndUnalignedGroups) {
  Problem problem = make_problem({16, 64, 32, 6, 1}, 12);
  for (int64_t token = 0; token < 16; ++token) problem.ids_TK[token].fill_(token == 0 ? 1 : token < 8 ? 2 : 3);
  expect_one_rank(problem, {0, 5, 16});
  expect_one_rank(problem, {0, 0, 11, 16});
}

TEST_P(DispatchRanksTest, NoTokensAnywhere) {
  const std::vector<RankResult> results = run_ranks(make_problem({0, 16, 12, 8, 2}, 14), {0, 0, 0}, GetParam());
  for (const RankResult& result : results) {
    EXPECT_EQ(result.grads.out.size(0), 0);
    EXPECT_EQ(result.grads.gate_up_proj.abs().max().item<float>(), 0.0F);
    EXPECT_EQ(result.grads.down_proj.abs().max().item<float>(), 0.0F);
  }
}

// The products that are ATen's alone.
TEST_P(DispatchRanksTest, OnTheReferenceExperts) {
  TEST_use_expert_mlp(&reference_expert_mlp());
  expect_one_rank(make_problem({31, 60, 37, 6, 3}, 19), {0, 10, 31});
  expect_one_rank(make_problem({12, 16, 12, 6, 2}, 20), {0, 0, 12, 12});
  TEST_use_expert_mlp(nullptr);
}

// Found before anything is exchanged, on whichever rank it is.
TEST_P(DispatchRanksTest, ExpertPickedTwiceIsAnError) {
  Problem problem = make_problem({12, 16, 12, 8, 2}, 21);
  problem.ids_TK[9].fill_(3);
  try {
    run_ranks(problem, {0, 5, 12}, GetParam());
    FAIL() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 70);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.text(), testing::HasSubstr("token 4 was routed to expert 3 twice"));
  }
}

TEST_P(DispatchRanksTest, RepeatsToTheBit) {
  const Problem problem = make_problem({60, 32, 16, 8, 3}, 15).to(at::kBFloat16);
  expect_same_bits(gather(run_ranks(problem, {0, 7, 30, 59, 60}, GetParam())),
                   gather(run_ranks(problem, {0, 7, 30, 59, 60}, GetParam())));
}

// DISP-05 over ranks: two dispatches in flight, and leaves that collect the gradients of both.
TEST_P(DispatchRanksTest, BackwardInReverseOrderAccumulates) {
  const Problem both = make_problem({34, 16, 12, 8, 2}, 16);
  std::vector<Gradients> sums(2);
  on_ranks(both, {0, 14, 34}, GetParam(), [&](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    const at::Tensor gate_up = own.gate_up_proj.clone().set_requires_grad(true);
    const at::Tensor down = own.down_proj.clone().set_requires_grad(true);
    std::vector<at::Tensor> outs, hidden, grads;
    const std::pair<int64_t, int64_t> parts[] = {{0, 6}, {6, own.sizes.tokens}};
    for (const auto& [begin, end] : parts) {
      const Problem part = own.tokens(begin, end);
      Routing routing;
      routing.ids_TK = part.ids_TK;
      routing.decided = true;
      hidden.push_back(part.hidden_TH.clone().set_requires_grad(true));
      grads.push_back(part.grad_out_TH);
      outs.push_back(dispatcher.forward(hidden.back(), part.weights_TK, routing, {gate_up, down}, ep));
    }
    outs[1].backward(grads[1]);
    outs[0].backward(grads[0]);
    sums[static_cast<size_t>(ep.rank())] = {
        at::cat(outs).detach(), at::cat({hidden[0].grad(), hidden[1].grad()}), {}, gate_up.grad(), down.grad()};
  });
  const Gradients whole = gather(run_ranks(both, {0, 14, 34}, kEager));
  EXPECT_LT(max_difference(at::cat({sums[0].out, sums[1].out}), whole.out), 1e-6);
  EXPECT_LT(max_difference(at::cat({sums[0].hidden, sums[1].hidden}), whole.hidden), 1e-6);
  EXPECT_LT(max_difference(at::cat({sums[0].gate_up_proj, sums[1].gate_up_proj}), whole.gate_up_proj), 1e-6);
  EXPECT_LT(max_difference(at::cat({sums[0].down_proj, sums[1].down_proj}), whole.down_proj), 1e-6);
}

// All ranks freeze the same tensors; the exchanges follow.
TEST_P(DispatchRanksTest, FrozenInputsGetNoGradient) {
  const Problem problem = make_problem({30, 16, 12, 8, 2}, 17);
  const std::vector<int64_t> bounds{0, 12, 30};
  const std::vector<RankResult> all = run_ranks(problem, bounds, GetParam());
  on_ranks(problem, bounds, GetParam(), [&](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    const Gradients& grads = all[static_cast<size_t>(ep.rank())].grads;
    const at::Tensor expected[] = {grads.hidden, grads.weights, grads.gate_up_proj, grads.down_proj};
    for (size_t which = 0; which < 4; ++which) {
      at::Tensor inputs[] = {own.hidden_TH.clone(), own.weights_TK.clone(), own.gate_up_proj.clone(),
                             own.down_proj.clone()};
      inputs[which].set_requires_grad(true);
      Routing routing;
      routing.ids_TK = own.ids_TK;
      routing.decided = true;
      dispatcher.forward(inputs[0], inputs[1], routing, {inputs[2], inputs[3]}, ep).backward(own.grad_out_TH);
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(inputs[i].grad().defined(), i == which);
      EXPECT_TRUE(bitwise_equal(inputs[which].grad(), expected[which])) << which;
    }
  });
}

// A part of its own for every rank: under an exchange and outside of the dispatcher, the same to the bit.
TEST_P(DispatchRanksTest, LocalWorkBesideTheExchange) {
  const Problem problem = make_problem({40, 16, 12, 8, 3}, 23).to(at::kBFloat16);
  on_ranks(problem, {0, 25, 40}, GetParam(), [](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    const at::Tensor matrix = own.down_proj[0].matmul(own.down_proj[0].t()).contiguous();  // [H, H]
    std::vector<at::Tensor> results[2];
    for (const bool is_beside : {false, true}) {
      const at::Tensor hidden = own.hidden_TH.clone().set_requires_grad(true);
      const at::Tensor weights = own.weights_TK.clone().set_requires_grad(true);
      const at::Tensor gate_up = own.gate_up_proj.clone().set_requires_grad(true);
      const at::Tensor leaf = matrix.clone().set_requires_grad(true);
      const LocalWork local = [&](const at::Tensor& tokens_TH) { return tokens_TH.matmul(leaf) * tokens_TH; };
      Routing routing;
      routing.ids_TK = own.ids_TK;
      routing.decided = true;
      Dispatcher::Output out;
      if (is_beside) {
        out = dispatcher.forward(hidden, weights, routing, {gate_up, own.down_proj}, ep, local);
      } else {
        out.experts_TH = dispatcher.forward(hidden, weights, routing, {gate_up, own.down_proj}, ep);
        out.local_TH = local(hidden);
      }
      const at::Tensor sum = out.experts_TH + out.local_TH;
      sum.backward(own.grad_out_TH);
      results[is_beside ? 1 : 0] = {sum.detach(), hidden.grad(), weights.grad(), gate_up.grad(), leaf.grad()};
    }
    for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(bitwise_equal(results[1][i], results[0][i])) << i;
  });
}

// Where nothing else needs a gradient, the local work's own leaves get theirs; without a graph there is none.
TEST_P(DispatchRanksTest, LocalWorkAloneNeedsGradients) {
  const Problem problem = make_problem({12, 16, 12, 8, 3}, 24);
  on_ranks(problem, {0, 5, 12}, GetParam(), [](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    const at::Tensor leaf = own.hidden_TH[0].clone().set_requires_grad(true);
    const LocalWork local = [&](const at::Tensor& tokens_TH) { return tokens_TH * leaf; };
    const auto forward = [&] {
      Routing routing;
      routing.ids_TK = own.ids_TK;
      routing.decided = true;
      return dispatcher.forward(own.hidden_TH, own.weights_TK, routing, {own.gate_up_proj, own.down_proj}, ep, local);
    };
    const Dispatcher::Output out = forward();
    EXPECT_FALSE(out.experts_TH.requires_grad());
    out.local_TH.backward(own.grad_out_TH);
    EXPECT_LT(max_difference(leaf.grad(), (own.grad_out_TH * own.hidden_TH).sum(0)), 1e-6);
    const at::NoGradGuard no_graph;
    const Dispatcher::Output without = forward();
    EXPECT_FALSE(without.local_TH.requires_grad());
    EXPECT_TRUE(bitwise_equal(without.local_TH, out.local_TH.detach()));
  });
}

// bf16, over ten seeds: at most 1.1 times as far from the exact result as eager.
TEST_P(DispatchRanksTest, Bf16IsAsNearAsEager) {
  double distance[5] = {}, eager[5] = {};
  for (int64_t seed = 50; seed < 60; ++seed) {
    const Problem problem = make_problem({64, 60, 37, 8, 3}, seed).to(at::kBFloat16);
    const Gradients exact = loop_gradients(problem.to(at::kDouble));
    add_frobenius_differences(distance, gather(run_ranks(problem, {0, 20, 64}, GetParam())), exact);
    add_frobenius_differences(eager, gather(run_ranks(problem, {0, 20, 64}, kEager)), exact);
  }
  for (int i = 0; i < 5; ++i) EXPECT_LE(distance[i], 1.1 * eager[i]) << i;
}

TEST_P(DispatchRanksTest, Bf16StaysWithinRounding) {
  const Problem problem = make_problem({64, 32, 16, 8, 2}, 7).to(at::kBFloat16);
  const auto world = comm::make_single_world();
  const Gradients one = dispatcher_gradients(problem, *make_dispatcher("eager"), world->all());
  const Gradients many = gather(run_ranks(problem, {0, 16, 64}, GetParam()));
  EXPECT_LT(frobenius_difference(many.out, one.out), 3e-3);  // sums of a token's results at a rank are rounded
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
  on_ranks(problem, {0, 20, 20}, GetParam(), [](const Problem& own, const Dispatcher& dispatcher, comm::Group& ep) {
    Routing routing;
    const Gradients first = dispatcher_gradients(own, dispatcher, ep, &routing);
    expect_same_bits(first, dispatcher_gradients(own, dispatcher, ep, &routing));
  });
}

INSTANTIATE_TEST_SUITE_P(Table, DispatchRanksTest, testing::ValuesIn(candidates()),
                         [](const auto& instance) { return instance.param.name; });

// Few tokens on every rank: one slice; many on one of them: two or four slices on all.
TEST(Domino, CutsManyTokensOnly) {
  const auto slices = [](int64_t tokens_of_last) {
    const Problem problem = make_problem({3 + tokens_of_last, 8, 4, 4, 2}, 18);
    std::vector<size_t> of_ranks;
    for (const RankResult& result :
         run_ranks(problem, {0, 3, 3 + tokens_of_last}, {"domino", make_domino_dispatcher})) {
      of_ranks.push_back(result.routing.arrived_rows.size());
    }
    return of_ranks;
  };
  EXPECT_EQ(slices(40), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(slices(2 * kMinDominoSliceTokens - 1), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(slices(2 * kMinDominoSliceTokens), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(slices(4 * kMinDominoSliceTokens - 1), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(slices(4 * kMinDominoSliceTokens), (std::vector<size_t>{4, 4}));
}

// How often rows of tokens are exchanged in a forward of three ranks; an expert gets a ninth of the tokens from each.
int exchanges_of_mc2(int64_t tokens) {
  int count = 0;
  const Problem problem = make_problem({tokens, 8, 4, 12, 4}, 22);
  comm::run_threads(3, {.timeout = std::chrono::seconds(60)}, [&](comm::World& world) {
    ops::begin_rank_thread(1);
    const auto ep = everyone(world, /*apart=*/true);
    dispatcher_gradients(part_of(problem, {0, 0, tokens / 2, tokens}, world.rank()), *make_dispatcher("mc2"), *ep);
    if (world.rank() != 0) return;
    for (const auto& entry : world.ledger().entries()) count += entry.tag_text() == "moe dispatch" ? 1 : 0;
  });
  return count;
}

// Apart: few rows in one exchange, many with one rank after the other; the own ones stay.
TEST(Mc2, CutsManyRowsOnly) {
  EXPECT_EQ(exchanges_of_mc2(9), 1);
  EXPECT_EQ(exchanges_of_mc2(9 * kMinMc2PieceRows - 1), 1);
  EXPECT_EQ(exchanges_of_mc2(9 * kMinMc2PieceRows), 2);
}

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
