// SPDX-License-Identifier: Apache-2.0
// Every dispatcher of the table on one rank, against the naive loop in fp64.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "moe/dispatcher.h"
#include "moe/expert_mlp.h"
#include "moe/test_problem.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

using testing::HasSubstr;

Routing decided(const at::Tensor& ids_TK) {
  Routing routing;
  routing.decided = true;
  routing.ids_TK = ids_TK;
  return routing;
}

class DispatchTest : public testing::TestWithParam<std::string_view> {
 protected:
  DispatchTest() { ops::TEST_poison_new_memory(true); }

  Gradients run(const Problem& problem, Routing* routing = nullptr) {
    return dispatcher_gradients(problem, *dispatcher_, world_->all(), routing);
  }
  void expect_loop(const Problem& problem, double bound) {
    const Gradients loop = loop_gradients(problem.to(at::kDouble));
    const Gradients got = run(problem);
    EXPECT_LT(max_difference(got.out, loop.out), bound);
    EXPECT_LT(max_difference(got.hidden, loop.hidden), bound);
    EXPECT_LT(max_difference(got.weights, loop.weights), bound);
    EXPECT_LT(max_difference(got.gate_up_proj, loop.gate_up_proj), bound);
    EXPECT_LT(max_difference(got.down_proj, loop.down_proj), bound);
  }

  std::unique_ptr<Dispatcher> dispatcher_ = make_dispatcher(GetParam());
  std::unique_ptr<comm::World> world_ = comm::make_single_world();
};

TEST_P(DispatchTest, EqualsALoop) {
  expect_loop(make_problem({50, 16, 12, 8, 2}, 1), 2e-6);
  expect_loop(make_problem({37, 60, 37, 12, 5}, 2), 2e-6);  // odd sizes
  expect_loop(make_problem({1, 8, 1, 3, 3}, 3), 2e-6);
  expect_loop(make_problem({20, 33, 7, 1, 1}, 4), 2e-6);
}

TEST_P(DispatchTest, NoTokens) {
  const Gradients got = run(make_problem({0, 16, 12, 8, 2}, 1));
  EXPECT_EQ(got.out.size(0), 0);
  EXPECT_EQ(got.gate_up_proj.abs().max().item<float>(), 0.0F);
  EXPECT_EQ(got.down_proj.abs().max().item<float>(), 0.0F);
}

// Groups of 0, 1, 7, 8 and 0 rows.
TEST_P(DispatchTest, EmptyAndUnalignedGroups) {
  Problem problem = make_problem({16, 64, 32, 5, 1}, 6);
  std::vector<int64_t> ids{1};
  ids.insert(ids.end(), 7, 2);
  ids.insert(ids.end(), 8, 3);
  problem.ids_TK = at::tensor(ids).view({16, 1});
  expect_loop(problem, 1e-6);
}

TEST_P(DispatchTest, ExpertsWithoutTokensGetExactZeros) {
  Problem problem = make_problem({9, 16, 12, 8, 2}, 7);
  problem.ids_TK = problem.ids_TK.remainder(4).contiguous();
  problem.ids_TK.select(1, 1).copy_((problem.ids_TK.select(1, 0) + 1).remainder(4));
  const Gradients got = run(problem);
  EXPECT_EQ(got.gate_up_proj.slice(0, 4).abs().max().item<float>(), 0.0F);
  EXPECT_EQ(got.down_proj.slice(0, 4).abs().max().item<float>(), 0.0F);
  expect_loop(problem, 2e-6);
}

// DISP-05: the state of one dispatch is its own.
TEST_P(DispatchTest, BackwardInReverseOrder) {
  const Problem first = make_problem({6, 16, 12, 8, 2}, 8);
  const Problem second = make_problem({11, 16, 12, 8, 2}, 9);
  const Gradients alone[] = {run(first), run(second)};
  std::vector<at::Tensor> hidden, outs;
  for (const Problem* problem : {&first, &second}) {
    hidden.push_back(problem->hidden_TH.clone().set_requires_grad(true));
    Routing routing = decided(problem->ids_TK);
    outs.push_back(dispatcher_->forward(hidden.back(), problem->weights_TK, routing,
                                        {problem->gate_up_proj, problem->down_proj}, world_->all()));
  }
  outs[1].backward(second.grad_out_TH);
  outs[0].backward(first.grad_out_TH);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(bitwise_equal(outs[i].detach(), alone[i].out));
    EXPECT_TRUE(bitwise_equal(hidden[i].grad(), alone[i].hidden));
  }
}

// The recompute: a second forward with the kept routing.
TEST_P(DispatchTest, KeptRoutingRepeatsToTheBit) {
  const Problem problem = make_problem({40, 32, 16, 8, 3}, 10).to(at::kBFloat16);
  Routing routing;
  const Gradients first = run(problem, &routing);
  const Gradients second = run(problem, &routing);
  EXPECT_TRUE(bitwise_equal(first.out, second.out));
  EXPECT_TRUE(bitwise_equal(first.hidden, second.hidden));
  EXPECT_TRUE(bitwise_equal(first.weights, second.weights));
  EXPECT_TRUE(bitwise_equal(first.gate_up_proj, second.gate_up_proj));
  EXPECT_TRUE(bitwise_equal(first.down_proj, second.down_proj));
}

TEST_P(DispatchTest, FrozenInputsGetNoGradient) {
  const Problem problem = make_problem({13, 16, 12, 8, 2}, 11);
  const Gradients all = run(problem);
  for (int which = 0; which < 4; ++which) {
    at::Tensor inputs[] = {problem.hidden_TH.clone(), problem.weights_TK.clone(), problem.gate_up_proj.clone(),
                           problem.down_proj.clone()};
    const at::Tensor expected[] = {all.hidden, all.weights, all.gate_up_proj, all.down_proj};
    inputs[which].set_requires_grad(true);
    Routing routing = decided(problem.ids_TK);
    dispatcher_->forward(inputs[0], inputs[1], routing, {inputs[2], inputs[3]}, world_->all())
        .backward(problem.grad_out_TH);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(inputs[i].grad().defined(), i == which);
    }
    EXPECT_TRUE(bitwise_equal(inputs[which].grad(), expected[which])) << which;
  }
}

TEST_P(DispatchTest, WithoutGradientNothingIsRecorded) {
  const Problem problem = make_problem({13, 16, 12, 8, 2}, 12);
  const at::Tensor hidden = problem.hidden_TH.clone().set_requires_grad(true);
  Routing routing = decided(problem.ids_TK);
  const auto forward = [&] {
    const at::NoGradGuard no_grad;
    return dispatcher_->forward(hidden, problem.weights_TK, routing, {problem.gate_up_proj, problem.down_proj},
                                world_->all());
  };
  const at::Tensor out = forward();
  EXPECT_FALSE(out.requires_grad());
  EXPECT_TRUE(bitwise_equal(out, run(problem).out));
}

TEST_P(DispatchTest, StridedInputs) {
  Problem problem = make_problem({13, 16, 12, 8, 2}, 13);
  const Gradients expected = run(problem);
  problem.hidden_TH = problem.hidden_TH.t().contiguous().t();
  problem.grad_out_TH = problem.grad_out_TH.t().contiguous().t();
  const Gradients got = run(problem);
  EXPECT_TRUE(bitwise_equal(got.out, expected.out));
  EXPECT_TRUE(bitwise_equal(got.hidden.contiguous(), expected.hidden));
}

TEST_P(DispatchTest, Bf16StaysNearFp32) {
  for (int64_t seed = 20; seed < 24; ++seed) {
    const Problem problem = make_problem({64, 60, 37, 8, 3}, seed).to(at::kBFloat16);
    const Gradients exact = loop_gradients(problem.to(at::kDouble));
    const Gradients got = run(problem);
    EXPECT_EQ(got.gate_up_proj.scalar_type(), at::kBFloat16);
    EXPECT_LT(frobenius_difference(got.out, exact.out), 5e-3);
    EXPECT_LT(frobenius_difference(got.hidden, exact.hidden), 6e-3);
    EXPECT_LT(frobenius_difference(got.weights, exact.weights), 5e-3);
    EXPECT_LT(frobenius_difference(got.gate_up_proj, exact.gate_up_proj), 6e-3);
    EXPECT_LT(frobenius_difference(got.down_proj, exact.down_proj), 5e-3);
  }
}

TEST_P(DispatchTest, ExpertPickedTwiceIsAnError) {
  Problem problem = make_problem({2, 16, 12, 8, 2}, 14);
  problem.ids_TK[0].fill_(3);
  try {
    run(problem);
    FAIL() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 70);
    EXPECT_THAT(error.text(), HasSubstr("token 0 was routed to expert 3 twice"));
  }
}

INSTANTIATE_TEST_SUITE_P(Table, DispatchTest, testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const DispatcherInfo& row : dispatchers()) names.push_back(row.name);
                           return names;
                         }()),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Dispatchers, UnknownNameListsTheKnownOnes) {
  try {
    make_dispatcher("lazy");
    FAIL() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig);
    EXPECT_THAT(error.text(), HasSubstr("eager"));
  }
}

// The two implementations of the experts, through eager.
class ExpertMlpChoice : public testing::Test {
 protected:
  ExpertMlpChoice() { ops::TEST_poison_new_memory(true); }
  ~ExpertMlpChoice() override { TEST_use_expert_mlp(nullptr); }

  Gradients run(const Problem& problem, const ExpertMlp& mlp) {
    TEST_use_expert_mlp(&mlp);
    return dispatcher_gradients(problem, *make_dispatcher("eager"), world_->all());
  }

  std::unique_ptr<comm::World> world_ = comm::make_single_world();
};

TEST_F(ExpertMlpChoice, ReferenceEqualsALoop) {
  const Problem problem = make_problem({37, 60, 37, 12, 5}, 2);
  const Gradients loop = loop_gradients(problem.to(at::kDouble));
  const Gradients got = run(problem, reference_expert_mlp());
  EXPECT_LT(max_difference(got.out, loop.out), 2e-6);
  EXPECT_LT(max_difference(got.hidden, loop.hidden), 2e-6);
  EXPECT_LT(max_difference(got.weights, loop.weights), 2e-6);
  EXPECT_LT(max_difference(got.gate_up_proj, loop.gate_up_proj), 2e-6);
  EXPECT_LT(max_difference(got.down_proj, loop.down_proj), 2e-6);
}

// In bf16, over ten seeds and odd sizes too.
TEST_F(ExpertMlpChoice, OthersAreAsNearToFp32AsTheReference) {
  for (const ExpertMlp* mlp : {&native_expert_mlp(), &packed_expert_mlp()}) {
    if (!mlp->supports(at::kBFloat16)) continue;  // a CPU without AVX2
    double distance[5] = {}, reference[5] = {};
    for (int64_t seed = 30; seed < 40; ++seed) {
      const ProblemSizes sizes = seed % 2 == 0 ? ProblemSizes{48, 64, 48, 8, 3} : ProblemSizes{48, 61, 37, 8, 3};
      const Problem problem = make_problem(sizes, seed).to(at::kBFloat16);
      const Gradients exact = loop_gradients(problem.to(at::kDouble));
      add_frobenius_differences(distance, run(problem, *mlp), exact);
      add_frobenius_differences(reference, run(problem, reference_expert_mlp()), exact);
    }
    for (int i = 0; i < 5; ++i) EXPECT_LT(distance[i], 1.1 * reference[i]) << mlp->name << i;
  }
}

// More rows than a block, on several threads and on one: the same bits.
TEST_F(ExpertMlpChoice, ResultsDoNotDependOnThreads) {
  const Problem problem = make_problem({400, 64, 48, 3, 2}, 41).to(at::kBFloat16);
  for (const ExpertMlp* mlp : {&native_expert_mlp(), &packed_expert_mlp()}) {
    if (!mlp->supports(at::kBFloat16)) continue;
    const int threads = at::get_num_threads();
    at::set_num_threads(2);
    const Gradients two = run(problem, *mlp);
    at::set_num_threads(1);
    const Gradients one = run(problem, *mlp);
    at::set_num_threads(threads);
    EXPECT_TRUE(bitwise_equal(two.out, one.out)) << mlp->name;
    EXPECT_TRUE(bitwise_equal(two.hidden, one.hidden)) << mlp->name;
    EXPECT_TRUE(bitwise_equal(two.gate_up_proj, one.gate_up_proj)) << mlp->name;
  }
}

// Experts with no, one, some and too many rows for the products of few, also side by side; every dispatcher.
class Decoding : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Decoding, TakesTheSameExperts) {
  ops::TEST_poison_new_memory(true);
  const auto world = comm::make_single_world();
  const double bound = GetParam() == at::kFloat ? 2e-6 : 2e-2;
  for (const ProblemSizes& sizes :
       {ProblemSizes{1, 60, 37, 8, 3}, ProblemSizes{4, 64, 48, 8, 8}, ProblemSizes{9, 61, 37, 3, 3},
        ProblemSizes{20, 60, 37, 8, 3}, ProblemSizes{0, 16, 12, 2, 1}}) {
    const Problem problem = make_problem(sizes, 50).to(GetParam());
    const at::Tensor exact = loop_gradients(problem.to(at::kDouble)).out;
    const at::NoGradGuard no_graph;
    for (const DispatcherInfo& info : dispatchers()) {
      Routing routing;
      routing.is_generating = routing.decided = true;
      routing.ids_TK = problem.ids_TK;
      const at::Tensor got = info.make({})->forward(problem.hidden_TH, problem.weights_TK, routing,
                                                    {problem.gate_up_proj, problem.down_proj}, world->all());
      EXPECT_LT(max_difference(got, exact), bound) << info.name << " " << sizes.tokens;
    }
  }
  ops::TEST_poison_new_memory(false);
}

INSTANTIATE_TEST_SUITE_P(Types, Decoding, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& instance) { return std::string(c10::toString(instance.param)); });

// DISP-07: rows of the buffers that belong to no expert are never read.
class SpareRows : public testing::TestWithParam<at::ScalarType> {};

TEST_P(SpareRows, AreNotRead) {
  const Problem problem = make_problem({6, 16, 12, 2, 1}, 15).to(GetParam());
  const ExpertMlp& mlp = choose_expert_mlp(GetParam());
  const std::vector<int64_t> offsets{0, 4, 6}, rows{5, 0, 3, 1, 2, 4};
  const ExpertRows expert_rows{offsets, rows, rows};
  const auto padded = [](const at::Tensor& tensor) {
    at::Tensor wide =
        at::full({tensor.size(0) + 3, tensor.size(1)}, std::numeric_limits<double>::quiet_NaN(), GetParam());
    wide.slice(0, 0, tensor.size(0)).copy_(tensor);
    return wide;
  };
  const ExpertWeights weights{problem.gate_up_proj, problem.down_proj};
  const at::Tensor routing = problem.weights_TK.view({-1});
  const ExpertForward exact = mlp.forward(problem.hidden_TH, expert_rows, weights);
  const ExpertForward wide = mlp.forward(padded(problem.hidden_TH), expert_rows, weights);
  EXPECT_TRUE(bitwise_equal(exact.y_RH, wide.y_RH));
  const ExpertGrads exact_grads =
      mlp.backward({problem.grad_out_TH, problem.hidden_TH, exact.gate_up_R2I, routing, expert_rows, weights, {}});
  const ExpertGrads wide_grads = mlp.backward(
      {padded(problem.grad_out_TH), padded(problem.hidden_TH), wide.gate_up_R2I, routing, expert_rows, weights, {}});
  EXPECT_TRUE(bitwise_equal(exact_grads.x_RH, wide_grads.x_RH));
  EXPECT_TRUE(bitwise_equal(exact_grads.gate_up_proj, wide_grads.gate_up_proj));
  EXPECT_TRUE(bitwise_equal(exact_grads.down_proj, wide_grads.down_proj));
  EXPECT_TRUE(bitwise_equal(exact_grads.weights_R, wide_grads.weights_R));
}

INSTANTIATE_TEST_SUITE_P(Types, SpareRows, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& instance) { return std::string(c10::toString(instance.param)); });

}  // namespace
}  // namespace expertmesh::moe
