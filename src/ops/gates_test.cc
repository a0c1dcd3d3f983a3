// SPDX-License-Identifier: Apache-2.0
// sigmoid_gate and delta_gates against fp64 over all that a float holds; what a value is does not depend on where it
// stands; gradients against finite differences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/new_tensor.h"
#include "ops/operators.h"

namespace expertmesh::ops {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = std::function<Tensors(const Operators&, const Tensors&)>;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensors gate(const Operators& ops, const Tensors& x) { return {ops.sigmoid_gate(x[0], x[1])}; }

// a, b, A_log, dt_bias.
Tensors gates(const Operators& ops, const Tensors& x) {
  const DeltaGates result = ops.delta_gates(x[0], x[1], x[2], x[3]);
  return {result.g_TV, result.beta_TV};
}

// Results, then gradients of the inputs for these gradients of the results.
Tensors run(const Op& op, const Operators& ops, const Tensors& inputs, const Tensors& grads) {
  Tensors leaves, results;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
  const Tensors outs = op(ops, leaves);
  torch::autograd::backward(outs, grads);
  for (const at::Tensor& out : outs) results.push_back(out.detach());
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

Tensors doubles(const Tensors& inputs) {
  Tensors wide;
  for (const at::Tensor& input : inputs) wide.push_back(input.to(at::kDouble));
  return wide;
}

// New memory is NaN, so that an element that is never written shows.
class Gates : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { TEST_poison_new_memory(true); }
  void TearDown() override { TEST_poison_new_memory(poisoned_before_); }

  at::Tensor random(at::IntArrayRef shape, double spread = 1.0) const {
    return (at::randn(shape) * spread).to(GetParam());
  }

 private:
  const bool poisoned_before_ = poisons_new_memory();
};

INSTANTIATE_TEST_SUITE_P(Types, Gates, testing::Values(at::kFloat, at::kBFloat16), [](const auto& instance) {
  return std::string(instance.param == at::kFloat ? "Fp32" : "Bf16");
});

// Element by element: `relative` of what is wanted, or half an ulp of bf16 where a result is bf16; exp is 0 where it
// would be a subnormal, and that is multiplied by up to 100 here.
void expect_near(const at::Tensor& got, const at::Tensor& wanted, double relative, const std::string& what) {
  constexpr double kHalfUlpBf16 = 1.0 / 256.0, kFlushed = 4e-36;
  if (got.scalar_type() == at::kBFloat16) relative += kHalfUlpBf16;
  const at::Tensor beyond = (got.to(at::kDouble) - wanted).abs() - (wanted.abs() * relative + kFlushed);
  EXPECT_LE(beyond.max().item<double>(), 0.0) << what;
  EXPECT_FALSE(got.isnan().any().item<bool>()) << what;
}

// ATen's own gradient of sigmoid has no digits left in fp64 either where sigmoid(x) is next to 1.
at::Tensor slope(const at::Tensor& x) { return at::sigmoid(x.to(at::kDouble)) * at::sigmoid(-x.to(at::kDouble)); }

// The whole range of an exponent, both zeros among it.
at::Tensor range_of_gates(at::ScalarType dtype) {
  return at::cat({at::arange(-90.0, 90.03, 0.0371, at::kDouble), at::tensor({0.0, -0.0, 1e-30, -1e-30}, at::kDouble)})
      .to(dtype);
}

TEST_P(Gates, SigmoidGateIsNearOverTheWholeRange) {
  at::manual_seed(1);
  const at::Tensor z = range_of_gates(GetParam());
  const Tensors inputs = {random(z.sizes()), z}, grads = {random(z.sizes())};
  const Tensors got = run(gate, native_operators(), inputs, grads);
  Tensors wanted = run(gate, reference_operators(), doubles(inputs), doubles(grads));
  wanted[2] = grads[0].to(at::kDouble) * inputs[0] * slope(z);
  for (size_t i = 0; i < got.size(); ++i) expect_near(got[i], wanted[i], 6e-7, "result " + std::to_string(i));
}

TEST_P(Gates, DeltaGatesAreNearOverTheWholeRange) {
  at::manual_seed(2);
  const at::Tensor x = range_of_gates(GetParam()).unsqueeze(1);
  const int64_t rows = x.size(0);
  // No bias: a sum in fp32 has other digits than one in fp64, and softplus(-80) is made of the last of them.
  const Tensors inputs = {at::cat({x, x, x}, 1), at::cat({x, x.flip(0), x}, 1), at::tensor({-2.0F, 0.0F, 2.9F}),
                          at::zeros({3})};
  const Tensors grads = {at::randn({rows, 3}), at::randn({rows, 3})};
  const Tensors got = run(gates, native_operators(), inputs, grads);
  Tensors wanted = run(gates, reference_operators(), doubles(inputs), doubles(grads));
  wanted[3] = grads[1].to(at::kDouble) * slope(inputs[1]);
  for (size_t i = 0; i < 4; ++i) expect_near(got[i], wanted[i], 6e-7, "result " + std::to_string(i));
  EXPECT_EQ(got[0].scalar_type(), at::kFloat);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  EXPECT_EQ(got[2].scalar_type(), GetParam());
}

TEST_P(Gates, HaveTheirEnds) {
  const Operators& ops = native_operators();
  const at::Tensor ends = at::tensor({kInf, -kInf, 0.0, -0.0, std::nan("")}, at::kDouble).to(GetParam());
  const at::Tensor gated = ops.sigmoid_gate(at::full_like(ends, 3.0), ends);
  const DeltaGates delta = ops.delta_gates(ends.unsqueeze(1), ends.unsqueeze(1), at::zeros({1}), at::zeros({1}));
  const std::vector<double> wanted_gated = {3.0, 0.0, 1.5, 1.5}, wanted_beta = {1.0, 0.0, 0.5, 0.5};
  const std::vector<double> wanted_g = {-kInf, 0.0, -std::log(2.0), -std::log(2.0)};
  for (int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(gated[i].item<double>(), wanted_gated[at]);
    EXPECT_EQ(delta.beta_TV[i].item<double>(), wanted_beta[at]);
    EXPECT_FLOAT_EQ(delta.g_TV[i].item<float>(), static_cast<float>(wanted_g[at]));
  }
  for (const at::Tensor& of_nan : {gated[4], delta.g_TV[4], delta.beta_TV[4]}) {
    EXPECT_TRUE(std::isnan(of_nan.item<double>()));
  }
}

TEST_P(Gates, DeltaGatesEqualTheReference) {
  at::manual_seed(3);
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{0, 4}, {1, 1}, {5, 3}, {33, 16}, {700, 37}}) {
    const Tensors inputs = {random({rows, cols}, 4.0), random({rows, cols}, 4.0), at::randn({cols}), at::randn({cols})};
    const Tensors grads = {at::randn({rows, cols}), at::randn({rows, cols})};
    const Tensors got = run(gates, native_operators(), inputs, grads),
                  wanted = run(gates, reference_operators(), doubles(inputs), doubles(grads));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), wanted[i].sizes());
      if (got[i].numel() == 0) continue;
      const double error = (got[i].to(at::kDouble) - wanted[i]).abs().max().item<double>();
      EXPECT_LE(error, (got[i].scalar_type() == at::kFloat ? 1e-6 : 4e-3) * wanted[i].abs().max().item<double>())
          << "result " << i << " of " << rows << " x " << cols;
    }
  }
}

// What stands at `rows` rows from row `first` on, alone: equal to the bit to what it is among the others.
void expect_same_alone(const Op& op, const Tensors& inputs, const Tensors& grads, size_t by_row, int64_t first,
                       int64_t rows) {
  const auto part_of = [&](const Tensors& all, size_t count) {
    Tensors part = all;
    for (size_t i = 0; i < count; ++i) part[i] = all[i].narrow(0, first, rows);
    return part;
  };
  const Tensors whole = run(op, native_operators(), inputs, grads),
                alone = run(op, native_operators(), part_of(inputs, by_row), part_of(grads, grads.size()));
  for (size_t i = 0; i < grads.size() + by_row; ++i) {
    EXPECT_TRUE(at::equal(alone[i], whole[i].narrow(0, first, rows)))
        << "result " << i << ", rows " << first << " to " << first + rows;
  }
}

// ATen's own sigmoid and softplus fail this: past the last full vector they round differently.
TEST_P(Gates, DoNotDependOnWhereAValueStands) {
  at::manual_seed(4);
  constexpr int64_t kRows = 40;
  for (const int64_t cols : {1, 3, 16, 37}) {
    const at::Tensor x = random({kRows, cols}, 4.0), z = random({kRows, cols}, 8.0), one = random({kRows, 1}, 8.0);
    const Tensors grads = {random({kRows, cols})}, wide_grads = {at::randn({kRows, cols}), at::randn({kRows, cols})};
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      for (const int64_t first : {int64_t{0}, int64_t{1}, kRows - rows}) {
        if (first + rows > kRows) continue;
        expect_same_alone(gate, {x, z}, grads, 2, first, rows);
        expect_same_alone(gate, {x, one}, grads, 2, first, rows);
        expect_same_alone(gates, {x, z, at::randn({cols}), at::randn({cols})}, wide_grads, 2, first, rows);
      }
    }
  }
}

// One value at every place of a row of every length.
TEST_P(Gates, DoNotDependOnTheLengthOfARow) {
  at::manual_seed(5);
  const at::Tensor values = random({40}, 20.0), factors = random({40});
  const auto of_each = [&](int64_t i, const at::Tensor& like) { return at::full_like(like, values[i].item<double>()); };
  for (int64_t length = 1; length <= 40; ++length) {
    const at::Tensor like = values.narrow(0, 0, length).view({1, length});
    const at::Tensor x = of_each(length - 1, like), y = at::full_like(like, factors[length - 1].item<double>());
    const at::Tensor zeros = at::zeros({length});
    const Tensors gated = run(gate, native_operators(), {y, x}, {at::ones_like(like)});
    const Tensors delta = run(gates, native_operators(), {x, x, zeros + 0.3, zeros + 0.7},
                              {at::zeros({1, length}) + 1.5, at::zeros({1, length}) + 1.5});
    for (const Tensors* results : {&gated, &delta}) {
      for (const at::Tensor& result : *results) {
        EXPECT_TRUE((result == result.flatten()[0]).all().item<bool>()) << "rows of " << length;
      }
    }
    // The first element is that of the longest row too.
    const at::Tensor longest = of_each(length - 1, values.view({1, 40}));
    EXPECT_TRUE(at::equal(
        native_operators().sigmoid_gate(at::full_like(longest, y.flatten()[0].item<double>()), longest).narrow(1, 0, 1),
        gated[0].narrow(1, 0, 1)));
    EXPECT_TRUE(at::equal(native_operators()
                              .delta_gates(longest, longest, at::zeros({40}) + 0.3, at::zeros({40}) + 0.7)
                              .g_TV.narrow(1, 0, 1),
                          delta[0].narrow(1, 0, 1)));
  }
}

// Halves of a fused projection, whose rows lie apart, and what cannot be read as rows at all.
TEST_P(Gates, TakeRowsWhereTheyLie) {
  at::manual_seed(6);
  const at::Tensor both = random({5, 3, 40}), grad = random({5, 3, 20});
  const at::Tensor x = both.narrow(2, 0, 20), z = both.narrow(2, 20, 20);
  const Tensors wanted = run(gate, native_operators(), {x.contiguous(), z.contiguous()}, {grad});
  const at::Tensor apart = both.detach().clone().set_requires_grad(true);
  const at::Tensor out = native_operators().sigmoid_gate(apart.narrow(2, 0, 20), apart.narrow(2, 20, 20));
  torch::autograd::backward({out}, {grad});
  EXPECT_TRUE(at::equal(out.detach(), wanted[0]));
  EXPECT_TRUE(at::equal(apart.grad(), at::cat({wanted[1], wanted[2]}, 2)));
  EXPECT_TRUE(
      at::equal(native_operators().sigmoid_gate(x.transpose(0, 1), z.transpose(0, 1)), wanted[0].transpose(0, 1)));
  EXPECT_TRUE(
      at::equal(native_operators().sigmoid_gate(x.transpose(1, 2), z.transpose(1, 2)), wanted[0].transpose(1, 2)));
}

TEST(DeltaGates, WeightGradientsHoldOverManyRows) {
  at::manual_seed(7);
  const int64_t rows = 20011, cols = 5;
  const Tensors inputs = {at::randn({rows, cols}) + 1, at::randn({rows, cols}), at::randn({cols}), at::randn({cols})};
  const Tensors grads = {at::randn({rows, cols}) + 1, at::randn({rows, cols})};
  const Tensors got = run(gates, native_operators(), inputs, grads),
                wanted = run(gates, reference_operators(), doubles(inputs), doubles(grads));
  for (const size_t weight : {4, 5}) {
    EXPECT_LE((got[weight] - wanted[weight]).abs().max().item<double>(),
              3e-7 * wanted[weight].abs().max().item<double>());
  }
}

// The native gradients in fp32 against differences of the reference in fp64, along random directions.
TEST(Gates, GradientsAreFiniteDifferences) {
  at::manual_seed(8);
  struct Case {
    Op op;
    Tensors inputs;
  };
  const std::vector<Case> cases = {
      {gate, {at::randn({7, 20}), at::randn({7, 20}) * 3}},
      {gate, {at::randn({7, 20}), at::randn({7, 1}) * 3}},
      {gates, {at::randn({9, 6}) * 3, at::randn({9, 6}) * 3, at::randn({6}), at::randn({6})}}};
  for (const Case& one : cases) {
    const Tensors wide = doubles(one.inputs);
    Tensors probes;
    for (const at::Tensor& out : one.op(reference_operators(), wide)) probes.push_back(at::randn_like(out));
    const auto sum_of = [&](const Tensors& x) {
      const Tensors outs = one.op(reference_operators(), x);
      double sum = 0.0;
      for (size_t i = 0; i < outs.size(); ++i) sum += (outs[i] * probes[i]).sum().item<double>();
      return sum;
    };
    Tensors grads;
    for (const at::Tensor& probe : probes) grads.push_back(probe.to(at::kFloat));
    const Tensors got = run(one.op, native_operators(), one.inputs, grads);
    for (size_t i = 0; i < wide.size(); ++i) {
      const at::Tensor direction = at::randn_like(wide[i]);
      Tensors ahead = wide, behind = wide;
      constexpr double kStep = 1e-5;
      ahead[i] = wide[i] + kStep * direction;
      behind[i] = wide[i] - kStep * direction;
      const double slope = (sum_of(ahead) - sum_of(behind)) / (2.0 * kStep);
      const at::Tensor products = got[grads.size() + i].to(at::kDouble) * direction;
      EXPECT_NEAR(products.sum().item<double>(), slope, 3e-7 * products.abs().sum().item<double>()) << "input " << i;
    }
  }
}

}  // namespace
}  // namespace expertmesh::ops
