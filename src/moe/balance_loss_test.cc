// SPDX-License-Identifier: Apache-2.0
// The balance loss on routers that are given their logits: the cases' values, and autograd of the formula in fp64.
#include "moe/balance_loss.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/json.h"
#include "comm/world.h"
#include "moe/load_stats.h"
#include "moe/test_problem.h"
#include "moe/test_router.h"
#include "ops/local_graph.h"

namespace expertmesh::moe {
namespace {

using testing::ElementsAre;

base::Json read_json(const std::string& name) {
  std::ifstream file(std::string(EXPERTMESH_SOURCE_DIR) + "/tests/cases/values/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return base::parse_json(text.str());
}

// [[1.0, 2.0], ...] -> [T, E]
at::Tensor matrix(const base::Json& rows) {
  std::vector<at::Tensor> tensors;
  for (const base::Json& row : *rows.try_array()) {
    std::vector<float> values;
    for (const base::Json& value : *row.try_array()) values.push_back(static_cast<float>(*value.try_double()));
    tensors.push_back(at::tensor(values));
  }
  return at::stack(tensors);
}

// A router whose logits are its input.
WholeRouter identity_router(int64_t num_experts, int64_t top_k) { return {at::eye(num_experts), top_k}; }

struct Balance {
  double loss = 0;
  std::vector<int64_t> counts;
};

Balance balance_of(const std::vector<at::Tensor>& layers, int64_t top_k) {
  const int64_t num_experts = layers.front().size(1);
  WholeRouter router = identity_router(num_experts, top_k);
  BalanceSums sums(num_experts, 1);
  for (const at::Tensor& logits_TE : layers) {
    Routing routing;
    BalanceTerm term{&sums, 0, {}};
    router->forward(logits_TE, routing, {}, &term);
    router->forward(logits_TE, routing, {}, &term);  // a recompute adds nothing
  }
  return {sums.loss(), router->load().counts()};
}

// ROUTE-04, ROUTE-05, ROUTE-07. Padding is dropped before the model, so here too.
TEST(BalanceLoss, EqualsTheCases) {
  const base::Json file = read_json("balance_loss.json");
  const base::Json& input = *file.find("input");
  const base::Json expected = read_json("expected.json");
  const base::Json& ok = *expected.find("balance_loss.json")->find("ok");
  const int64_t top_k = *input.find("top_k")->try_int64();
  const auto check = [&](const std::string& name, const std::vector<at::Tensor>& layers) {
    const Balance got = balance_of(layers, top_k);
    EXPECT_NEAR(got.loss, *ok.find(name)->find("loss")->try_double(), 1e-6) << name;
    std::vector<int64_t> counts;
    for (const base::Json& count : *ok.find(name)->find("counts")->try_array()) counts.push_back(*count.try_int64());
    EXPECT_EQ(got.counts, counts) << name;
  };
  for (const std::string name : {"one_layer", "two_layers", "hot"}) {
    std::vector<at::Tensor> layers;
    for (const base::Json& layer : *input.find(name)->try_array()) layers.push_back(matrix(layer));
    check(name, layers);
  }
  std::vector<at::Tensor> valid;
  const at::Tensor padded = matrix(*input.find("padded"));
  for (int64_t row = 0; const base::Json& mask : *input.find("mask")->try_array()) {
    if (*mask.try_int64() == 1) valid.push_back(padded[row]);
    ++row;
  }
  check("padded", {at::stack(valid)});
}

// A layer behind a linear map: what the loss adds to the gradients of map and gate, kept and run again.
TEST(BalanceLoss, GradientsAgreeWithAutogradInFp64) {
  constexpr int64_t kExperts = 6, kTopK = 2;
  constexpr double kCoefficient = 0.7;
  const auto randn = [](const std::vector<int64_t>& shape, uint64_t seed) {
    return at::randn(shape, at::Generator(at::make_generator<at::CPUGeneratorImpl>(seed)), at::kFloat);
  };
  const at::Tensor gate = randn({kExperts, 8}, 1), map = randn({8, 8}, 2).set_requires_grad(true);
  const at::Tensor x = randn({13, 8}, 3), upstream = randn({13, kTopK}, 4);
  for (const bool is_rerun : {false, true}) {
    WholeRouter router(gate, kTopK);
    const at::Tensor weight = router->own_parameters().front()->value();
    BalanceSums sums(kExperts, 1);
    Routing routing;
    BalanceTerm term{&sums, 0, {}};
    if (is_rerun) {
      const at::NoGradGuard no_grad;
      router->forward(x.mm(map), routing, {}, &term);
      EXPECT_FALSE(term.probs_TE.defined());
    }
    map.mutable_grad().reset();
    weight.mutable_grad().reset();
    const at::Tensor weights_TK = router->forward(x.mm(map), routing, {}, &term);
    const at::Tensor grad_E = at::tensor(sums.gradient(kCoefficient));
    ops::run_backward(weights_TK, upstream, term.probs_TE, grad_E.expand_as(term.probs_TE).contiguous());

    const at::Tensor wide_map = map.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor wide_gate = gate.to(at::kDouble).set_requires_grad(true);
    const at::Tensor probs = at::softmax(x.to(at::kDouble).mm(wide_map).mm(wide_gate.t()), -1);
    const at::Tensor top = probs.gather(1, routing.ids_TK);
    const at::Tensor f = at::bincount(routing.ids_TK.flatten(), {}, kExperts).to(at::kDouble) / 13;
    const at::Tensor loss = (f * probs.mean(0)).sum() * kExperts;
    EXPECT_NEAR(sums.loss(), loss.item<double>(), 1e-7 * loss.item<double>());
    ((top / top.sum(-1, true) * upstream.to(at::kDouble)).sum() + loss * kCoefficient).backward();
    EXPECT_LT(max_difference(weight.grad(), wide_gate.grad()), 3e-6);
    EXPECT_LT(max_difference(map.grad(), wide_map.grad()), 3e-6);
  }
}

TEST(BalanceLoss, OfNothingIsZero) {
  BalanceSums sums(4, 1);
  EXPECT_EQ(sums.loss(), 0.0);
  EXPECT_THAT(sums.gradient(1.0), ElementsAre(0.0F, 0.0F, 0.0F, 0.0F));
  sums.add(0, {}, {});
  EXPECT_EQ(sums.loss(), 0.0);
}

TEST(BalanceLoss, OfEvenLoadIsTheChoicesOfAToken) {
  BalanceSums sums(3, 1);
  const std::vector<float> even(9, 1.0F / 3.0F);
  sums.add(0, std::vector<int64_t>{0, 1, 1, 2, 2, 0}, even);
  EXPECT_NEAR(sums.loss(), 2.0, 1e-6);
}

// Layers that crowd on different experts: even together, not each by itself. The third has no experts.
TEST(BalanceLoss, ByLayerIsTheMeanOfTheLayers) {
  const std::vector<float> first{0.9F, 0.1F, 0.9F, 0.1F}, second{0.2F, 0.8F};
  BalanceSums together(2, 1), by_layer(2, 3);
  for (BalanceSums* sums : {&together, &by_layer}) {
    sums->add(sums->group_of(0), std::vector<int64_t>{0, 0}, first);
    sums->add(sums->group_of(1), std::vector<int64_t>{1}, second);
  }
  EXPECT_NEAR(together.loss(), 2 * (2.0 / 3 * 2 / 3 + 1.0 / 3 * 1 / 3), 1e-6);
  EXPECT_NEAR(by_layer.loss(), (2 * 0.9 + 2 * 0.8) / 2, 1e-6);
  // Of each probability of a row: 2 f / rows / 2 layers.
  EXPECT_THAT(by_layer.gradient(1.0), ElementsAre(0.5F, 0.0F, 0.0F, 1.0F, 0.0F, 0.0F));
}

TEST(BalanceLoss, OfProbabilitiesThatAreNoNumbersIsNone) {
  BalanceSums sums(2, 1);
  sums.add(0, std::vector<int64_t>{0}, std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 0.5F});
  EXPECT_TRUE(std::isnan(sums.loss()));
}

TEST(LoadSummary, OfOneExpertOfEvenLoadAndOfNothing) {
  const LoadSummary even = summarise_load(std::vector<int64_t>{3, 3, 3, 3});
  EXPECT_DOUBLE_EQ(even.max_over_mean, 1.0);
  EXPECT_EQ(even.dead, 0);
  EXPECT_DOUBLE_EQ(even.entropy, 1.0);
  const LoadSummary one = summarise_load(std::vector<int64_t>{0, 8, 0, 0});
  EXPECT_DOUBLE_EQ(one.max_over_mean, 4.0);
  EXPECT_EQ(one.dead, 3);
  EXPECT_DOUBLE_EQ(one.entropy, 0.0);
  const LoadSummary half = summarise_load(std::vector<int64_t>{5, 5, 0, 0});
  EXPECT_DOUBLE_EQ(half.entropy, 0.5);
  EXPECT_EQ(half.dead, 2);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{}, std::vector<int64_t>{0, 0}}) {
    EXPECT_EQ(summarise_load(counts).max_over_mean, 0.0);
    EXPECT_EQ(summarise_load(counts).dead, 0);
  }
  EXPECT_DOUBLE_EQ(summarise_load(std::vector<int64_t>{7}).entropy, 1.0);
}

}  // namespace
}  // namespace expertmesh::moe
