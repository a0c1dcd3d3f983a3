// SPDX-License-Identifier: Apache-2.0
#include "ops/product.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <vector>

#include "ops/new_tensor.h"

namespace expertmesh::ops {
namespace {

class ThroughFp32 : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    TEST_multiply_through_fp32(true);
    TEST_poison_new_memory(true);
  }
  void TearDown() override {
    TEST_poison_new_memory(false);
    TEST_multiply_through_fp32(false);
  }
};

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }

// Within one rounding to bf16 of the product in fp64.
void expect_product(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(got.scalar_type(), at::kBFloat16);
  const at::Tensor left = a.to(at::kDouble), right = b.to(at::kDouble);
  const at::Tensor exact = at::mm(left, right), size = at::mm(left.abs(), right.abs());
  const at::Tensor bound = exact.abs() / 256 + size * 1e-5;
  EXPECT_TRUE(((got.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

// Each side in turn is the longest, in one block and in several; operands lie either way round.
TEST_F(ThroughFp32, EveryCutAndLayout) {
  const int64_t shapes[][3] = {{1, 1, 1},  {3, 7, 5},        {20, 4000, 17}, {2000, 300, 900}, {4000, 20, 17},
                               {17, 5, 0}, {300, 9000, 200}, {5, 70000, 30}, {300, 200, 9000}, {9000, 300, 200}};
  for (const auto& [rows, columns, depth] : shapes) {
    const at::Tensor a = random({rows, depth}), b = random({depth, columns});
    const at::Tensor a_turned = a.t().contiguous().t(), b_turned = b.t().contiguous().t();
    expect_product(product(a, b), a, b);
    expect_product(product(a, b_turned), a, b);
    expect_product(product(a_turned, b), a, b);
    at::Tensor wide = random({rows, columns + 3});
    const at::Tensor untouched = wide.narrow(1, columns, 3).clone();
    at::Tensor out = wide.narrow(1, 0, columns);
    product_into(out, a, b);
    expect_product(out, a, b);
    EXPECT_TRUE(wide.narrow(1, columns, 3).equal(untouched));
  }
}

TEST_F(ThroughFp32, ShapesThatDoNotFitAreRefused) { EXPECT_ANY_THROW(product(random({2, 3}), random({4, 5}))); }

TEST_F(ThroughFp32, LinearAndItsGradients) {
  const at::Tensor x = random({4, 6, 10}).set_requires_grad(true), weight = random({7, 10}).set_requires_grad(true),
                   bias = random({7}).set_requires_grad(true), grad = random({4, 6, 7});
  const at::Tensor y = linear(x, weight, bias);
  torch::autograd::backward({y}, {grad});
  const at::Tensor x64 = x.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor weight64 = weight.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor bias64 = bias.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor y64 = at::linear(x64, weight64, bias64);
  torch::autograd::backward({y64}, {grad.to(at::kDouble)});
  const auto expect_near = [](const at::Tensor& got, const at::Tensor& exact) {
    ASSERT_EQ(got.sizes(), exact.sizes());
    EXPECT_LT((got.to(at::kDouble) - exact).abs().max().item<double>(), exact.abs().max().item<double>() / 128);
  };
  expect_near(y.detach(), y64.detach());
  expect_near(x.grad(), x64.grad());
  expect_near(weight.grad(), weight64.grad());
  expect_near(bias.grad(), bias64.grad());
  expect_near(linear(x, weight, at::Tensor()).detach(), at::linear(x64, weight64).detach());
}

// In decoding, few rows take a path of their own, whatever the processor; with a graph, or more rows, they do not.
TEST(LinearOfFewRows, IsTheProduct) {
  const DecodingScope decoding;
  at::manual_seed(4);
  TEST_poison_new_memory(true);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
             {0, 8, 5}, {1, 1, 1}, {1, 300, 700}, {3, 37, 130}, {8, 512, 257}, {9, 64, 30}}) {
      const at::Tensor x = at::randn({rows, in}).to(dtype), bias = at::randn({out}).to(dtype);
      const at::Tensor wide_weight = at::randn({out, in + 3}).to(dtype), weight = wide_weight.narrow(1, 0, in);
      const at::Tensor exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
      const double bound = dtype == at::kFloat ? 1e-5 : 1.0 / 128;
      const auto expect_near = [&](const at::Tensor& got, const at::Tensor& wanted) {
        ASSERT_EQ(got.scalar_type(), dtype);
        ASSERT_EQ(got.sizes(), wanted.sizes());
        if (wanted.numel() == 0) return;
        EXPECT_LE((got.to(at::kDouble) - wanted).abs().max().item<double>(), bound * wanted.abs().max().item<double>())
            << rows << " rows of " << in << ", weight of " << out;
      };
      expect_near(linear(x, weight, at::Tensor()), exact);
      expect_near(linear(x, weight, bias), exact + bias.to(at::kDouble));
      expect_near(linear(x.unsqueeze(0), weight, at::Tensor()), exact.unsqueeze(0));
      EXPECT_TRUE(linear(x.clone().set_requires_grad(true), weight, at::Tensor()).requires_grad());
    }
  }
  TEST_poison_new_memory(false);
}

// Threads share the columns of the result.
TEST(LinearOfFewRows, DoesNotDependOnThreads) {
  const DecodingScope decoding;
  const at::Tensor x = random({2, 600}), weight = random({901, 600});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = linear(x, weight, at::Tensor());
  at::set_num_threads(2);
  const at::Tensor two = linear(x, weight, at::Tensor());
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one, two));
}

// What a layer computes without a graph it computes again with one when it is recomputed: to the bit, and in fp32
// whatever stands beside a row.
TEST(LinearOfFewRows, IsEqualWithAndWithoutAGraph) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({9, 40}).to(dtype), weight = random({30, 40}).to(dtype);
    const at::Tensor leaf = weight.clone().set_requires_grad(true);
    for (int64_t rows = 0; rows <= 9; ++rows) {
      const at::Tensor few = x.narrow(0, 0, rows), with_graph = linear(few, leaf, at::Tensor());
      EXPECT_TRUE(with_graph.requires_grad());
      EXPECT_TRUE(at::equal(with_graph.detach(), linear(few, weight, at::Tensor()))) << rows << " rows";
    }
  }
}

TEST(ProductOfFewRows, IsThatOfLeastRows) {
  TEST_poison_new_memory(true);
  const at::Tensor a = random({kLeastRows, 33}), b = random({33, 21}), whole = product(a, b);
  for (int64_t rows = 0; rows < kLeastRows; ++rows) {
    EXPECT_TRUE(at::equal(product(a.narrow(0, 0, rows), b), whole.narrow(0, 0, rows))) << rows << " rows";
  }
  TEST_poison_new_memory(false);
}

// fp32 goes to the library whatever the processor.
TEST_F(ThroughFp32, Fp32IsTheLibrarys) {
  EXPECT_TRUE(library_multiplies(at::kFloat));
  const at::Tensor a = at::randn({30, 40}), b = at::randn({40, 50});
  EXPECT_TRUE(product(a, b).equal(at::mm(a, b)));
}

}  // namespace
}  // namespace expertmesh::ops
