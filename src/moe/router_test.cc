// SPDX-License-Identifier: Apache-2.0
#include "moe/router.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/world.h"
#include "moe/test_problem.h"
#include "moe/test_router.h"

namespace expertmesh::moe {
namespace {

using testing::ElementsAre;

at::Tensor randn(std::vector<int64_t> shape, uint64_t seed) {
  return at::randn(shape, at::Generator(at::make_generator<at::CPUGeneratorImpl>(seed)), at::kFloat);
}

std::vector<int64_t> values(const at::Tensor& ids) {
  const at::Tensor flat = ids.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

TEST(Router, WeightsAreTheProbabilitiesOfTheTopExperts) {
  const at::Tensor hidden = randn({33, 24}, 1);
  const at::Tensor gate = randn({12, 24}, 2) * 0.3;
  for (const bool norm : {false, true}) {
    WholeRouter router(gate, 4, norm);
    Routing routing;
    const at::Tensor weights = router->forward(hidden, routing);
    const auto [top, ids] = at::topk(at::softmax(hidden.to(at::kDouble).mm(gate.to(at::kDouble).t()), -1), 4, -1);
    EXPECT_EQ(values(routing.ids_TK), values(ids));
    EXPECT_EQ(weights.scalar_type(), at::kFloat);
    EXPECT_LT(max_difference(weights.detach(), norm ? top / top.sum(-1, true) : top), 1e-6);
  }
}

TEST(Router, GradientsAgreeWithAutogradInFp64) {
  const at::Tensor hidden = randn({9, 24}, 3).set_requires_grad(true);
  WholeRouter router(randn({12, 24}, 4) * 0.3, 4);
  const at::Tensor gate = router->own_parameters().front()->value();
  const at::Tensor upstream = randn({9, 4}, 5);
  Routing routing;
  router->forward(hidden, routing).backward(upstream);

  const at::Tensor wide_hidden = hidden.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor wide_gate = gate.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor top = at::softmax(wide_hidden.mm(wide_gate.t()), -1).gather(1, routing.ids_TK);
  (top / top.sum(-1, true)).backward(upstream.to(at::kDouble));
  EXPECT_LT(max_difference(hidden.grad(), wide_hidden.grad()), 2e-6);
  EXPECT_LT(max_difference(gate.grad(), wide_gate.grad()), 2e-6);
}

// ROUTE-10: logits rounded to bf16 would tie experts 0 and 1.
TEST(Router, LogitsAreNotRounded) {
  const at::Tensor gate = at::tensor({2.0F, 1.0F, 0.5F, -0.015625F, 2.015625F, 1.0F, 0.5F, -0.00390625F, 2.0F,
                                      1.0078125F, 0.5F, -0.03125F, 1.0F, 1.0F, 1.0F, 1.0F})
                              .view({4, 4})
                              .to(at::kBFloat16);
  const at::Tensor hidden = at::tensor({1.0F, 0.5F, 0.25F, -1.0F}).view({1, 4}).to(at::kBFloat16);
  Routing routing;
  WholeRouter(gate, 2)->forward(hidden, routing);
  EXPECT_THAT(values(routing.ids_TK), ElementsAre(2, 1));
}

TEST(Router, Bf16ChoosesAsAnFp32GateOverTheSameNumbers) {
  const at::Tensor hidden = randn({1000, 64}, 6).to(at::kBFloat16);
  const at::Tensor gate = (randn({8, 64}, 7) * 0.1).to(at::kBFloat16);
  Routing narrow, wide;
  WholeRouter(gate, 2)->forward(hidden, narrow);
  WholeRouter(gate.to(at::kFloat), 2)->forward(hidden.to(at::kFloat), wide);
  EXPECT_EQ(values(narrow.ids_TK), values(wide.ids_TK));
}

// AC-01: duplicated gate rows tie in every token, wherever they sit in the product's blocks.
TEST(Router, DuplicatedGateRowsTieToTheLowerExpert) {
  for (const int64_t num_experts : {4, 12, 60, 64, 130}) {
    const at::Tensor half = randn({num_experts / 2, 37}, 8);
    at::Tensor gate = randn({num_experts, 37}, 9);
    gate.slice(0, 0, num_experts / 2).copy_(half);
    gate.slice(0, num_experts - num_experts / 2).copy_(half);
    Routing routing;
    WholeRouter(gate, 1)->forward(randn({301, 37}, 10), routing);
    EXPECT_LT(routing.ids_TK.max().item<int64_t>(), num_experts - num_experts / 2) << num_experts;
  }
}

TEST(Router, DecidesOnceAndCountsOnce) {
  const at::Tensor hidden = randn({20, 24}, 11);
  WholeRouter router(randn({6, 24}, 12), 2);
  Routing routing;
  const at::Tensor first = router->forward(hidden, routing);
  const std::vector<int64_t> counts = router->load().counts();
  const at::Tensor second = router->forward(hidden, routing);
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_EQ(router->num_decisions(), 1);
  EXPECT_EQ(router->load().counts(), counts);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 20 * 2);
}

TEST(Router, KeptIdsAreUsedEvenWhereOthersWouldBeChosen) {
  const at::Tensor hidden = randn({5, 24}, 13);
  WholeRouter router(randn({6, 24}, 14), 1, /*norm=*/false);
  Routing routing;
  router->forward(hidden, routing);
  routing.ids_TK = (routing.ids_TK + 1).remainder(6);
  const at::Tensor kept = router->forward(hidden, routing).detach();
  Routing fresh;
  const at::Tensor chosen = router->forward(hidden, fresh).detach();
  EXPECT_TRUE((kept < chosen).all().item<bool>());
}

TEST(Router, NoTokens) {
  WholeRouter router(randn({6, 24}, 15), 2);
  Routing routing;
  const at::Tensor weights = router->forward(randn({0, 24}, 16), routing);
  EXPECT_EQ(weights.sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(routing.ids_TK.sizes(), (std::vector<int64_t>{0, 2}));
}

TEST(Router, RulesChangeIdsButNotProbabilities) {
  const auto world = comm::make_single_world();
  const at::Tensor hidden = randn({10, 24}, 17);
  const at::Tensor gate = randn({6, 24}, 18);
  const at::Tensor probs = at::softmax(hidden.mm(gate.t()), -1);
  WholeRouter router(gate, 2, /*norm=*/false);
  Routing hot, balanced;
  const at::Tensor weights = router->forward(hidden, hot, make_choice_rule("hot:3", 6, 2, world->all())).detach();
  EXPECT_LT(hot.ids_TK.max().item<int64_t>(), 3);
  EXPECT_LT(max_difference(weights, probs.gather(1, hot.ids_TK)), 1e-6);
  router->forward(hidden, balanced, make_choice_rule("balanced", 6, 2, world->all()));
  EXPECT_THAT(values(balanced.ids_TK.slice(0, 0, 4)), ElementsAre(0, 1, 2, 3, 4, 5, 0, 1));
}

}  // namespace
}  // namespace expertmesh::moe
