// SPDX-License-Identifier: Apache-2.0
// The native operators against the reference ones: values and gradients, fp32 and bf16, sizes that fill no vector.
#include "ops/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ops/native.h"

namespace expertmesh::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) { return at::randn(shape).to(dtype); }

// Output and gradients of the inputs for one fixed gradient of the output.
Tensors run(const std::function<at::Tensor(const Tensors&)>& op, const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
  const at::Tensor out = op(leaves);
  const at::Tensor grad =
      at::arange(out.numel(), at::kFloat).remainder(7).sub(3).view(out.sizes()).to(out.scalar_type());
  torch::autograd::backward({out}, {grad});
  Tensors results = {out.detach()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

// bf16 is held against the reference in fp32 on the same numbers, with bf16's rounding as the bound.
void expect_same(const std::function<at::Tensor(const Operators&, const Tensors&)>& op, const Tensors& inputs,
                 double bound_fp32 = 2e-6, double bound_bf16 = 8e-3) {
  const bool is_fp32 = inputs.front().scalar_type() == at::kFloat;
  Tensors wide;
  for (const at::Tensor& input : inputs) wide.push_back(input.to(at::kFloat));
  const Tensors got = run([&](const Tensors& x) { return op(native_operators(), x); }, inputs);
  const Tensors wanted = run([&](const Tensors& x) { return op(reference_operators(), x); }, wide);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].scalar_type(), inputs.front().scalar_type());
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes());
    if (wanted[i].numel() == 0) continue;
    const double scale = std::max(wanted[i].abs().max().item<double>(), 1e-30);
    const double difference = (got[i].to(at::kFloat) - wanted[i]).abs().max().item<double>();
    EXPECT_LE(difference / scale, is_fp32 ? bound_fp32 : bound_bf16) << "result " << i;
  }
}

class NativeOperators : public testing::TestWithParam<at::ScalarType> {};

TEST_P(NativeOperators, RmsNorm) {
  at::manual_seed(1);
  const auto op = [](const Operators& ops, const Tensors& x) { return ops.rms_norm(x[0], x[1], 1e-6); };
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{5, 64}, {3, 7}, {300, 130}, {4, 3, 16}, {0, 8}}) {
    expect_same(op, {random(shape, GetParam()), random({shape.back()}, GetParam())});
  }
}

TEST_P(NativeOperators, Rope) {
  at::manual_seed(2);
  for (const auto& [tokens, heads, dim, half] : std::vector<std::array<int64_t, 4>>{
           {6, 2, 8, 4}, {9, 3, 64, 32}, {5, 2, 36, 18}, {5, 2, 40, 6}, {0, 2, 8, 4}, {700, 4, 64, 32}}) {
    const at::Tensor positions = at::randint(0, 50, {tokens}, at::kLong);
    const at::Tensor cos = at::randn({50, half}), sin = at::randn({50, half});
    expect_same([&](const Operators& ops, const Tensors& x) { return ops.rope(x[0], positions, cos, sin); },
                {random({tokens, heads, dim}, GetParam())});
  }
}

TEST_P(NativeOperators, Swiglu) {
  at::manual_seed(3);
  const auto op = [](const Operators& ops, const Tensors& x) { return ops.swiglu(x[0], x[1]); };
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{4, 36}, {1, 1}, {300, 128}, {0, 4}}) {
    expect_same(op, {random(shape, GetParam()) * 4, random(shape, GetParam())});
  }
}

// Both native paths, whichever this processor would take.
TEST_P(NativeOperators, AttentionByDocuments) {
  at::manual_seed(4);
  const std::vector<std::vector<int64_t>> documents = {{0, 7},        {0, 1, 2, 40, 40, 45}, {0, 0},
                                                       {0, 130, 260}, {0, 64, 128, 193},     {0, 600, 601}};
  for (const auto path : {native::attention_tiles, native::attention_flash}) {
    for (const auto& [heads, kv_heads, dim] :
         std::vector<std::array<int64_t, 3>>{{4, 2, 16}, {3, 3, 10}, {8, 1, 64}, {6, 2, 36}}) {
      for (const std::vector<int64_t>& cu : documents) {
        const int64_t tokens = cu.back();
        const auto op = [&](const Operators& ops, const Tensors& x) {
          const bool is_native = &ops == &native_operators();
          return (is_native ? path : reference_operators().attention)(x[0], x[1], x[2], cu, 0.3);
        };
        // Flash attention rounds the gradients of a shared head before it adds them.
        expect_same(op,
                    {random({tokens, heads, dim}, GetParam()), random({tokens, kv_heads, dim}, GetParam()),
                     random({tokens, kv_heads, dim}, GetParam())},
                    1e-5, 2e-2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NativeOperators, testing::Values(at::kFloat, at::kBFloat16), [](const auto& instance) {
  return std::string(instance.param == at::kFloat ? "Fp32" : "Bf16");
});

TEST(Attention, DocumentsDoNotSeeEachOther) {
  at::manual_seed(5);
  const std::vector<int64_t> both = {0, 9, 30}, second = {0, 21};
  const at::Tensor q = random({30, 4, 16}, at::kFloat), k = random({30, 2, 16}, at::kFloat),
                   v = random({30, 2, 16}, at::kFloat);
  const at::Tensor wanted = v[0].repeat_interleave(2, 0);
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    const at::Tensor packed = ops->attention(q, k, v, both, 0.25);
    const at::Tensor alone = ops->attention(q.narrow(0, 9, 21), k.narrow(0, 9, 21), v.narrow(0, 9, 21), second, 0.25);
    EXPECT_LT((packed.narrow(0, 9, 21) - alone).abs().max().item<double>(), 1e-6) << ops->name;
    EXPECT_LT((packed[0] - wanted).abs().max().item<double>(), 1e-6) << "the first token sees itself alone";
  }
}

TEST(OperatorTable, ListsEveryOperatorOfEachKernel) {
  std::set<std::string> native, reference;
  for (const OperatorInfo& row : operator_table()) {
    EXPECT_TRUE((row.kernel == "auto" ? native : reference).emplace(row.op).second) << row.op;
  }
  EXPECT_EQ(native, reference);
  EXPECT_EQ(native.size(), 5U);
}

}  // namespace
}  // namespace expertmesh::ops
