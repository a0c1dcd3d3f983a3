// SPDX-License-Identifier: Apache-2.0
// The native operators against the reference ones: values and gradients, fp32 and bf16, sizes that fill no vector.
#include "ops/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ops/cpu/isa_testing.h"
#include "ops/mrope.h"
#include "ops/native.h"
#include "ops/new_tensor.h"

namespace expertmesh::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) { return at::randn(shape).to(dtype); }

double largest_error(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got.to(at::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
}

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

struct Case {
  at::ScalarType dtype;
  cpu::IsaLevel level;
  operator at::ScalarType() const { return dtype; }  // NOLINT(google-explicit-constructor): what tests ask for
};

// New memory is NaN, so that an element that is never written shows. Each instruction set in turn.
class NativeOperators : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!cpu::processor_has(GetParam().level)) GTEST_SKIP() << "this CPU has no " << GetParam().level.name;
    TEST_use_instruction_sets(GetParam().level.sets);
    TEST_poison_new_memory(true);
  }
  void TearDown() override {
    TEST_use_instruction_sets(before_);
    TEST_poison_new_memory(poisoned_before_);
  }

 private:
  const cpu::InstructionSets before_ = cpu::instruction_sets();
  const bool poisoned_before_ = poisons_new_memory();
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const cpu::IsaLevel& level : cpu::kIsaLevels) cases.push_back({dtype, level});
  }
  return cases;
}

const std::vector<std::vector<int64_t>> kNormShapes = {{5, 64}, {3, 7}, {300, 130}, {4, 3, 16}, {0, 8}};

TEST_P(NativeOperators, RmsNorm) {
  at::manual_seed(1);
  for (const double offset : {0.0, 1.0}) {
    const auto op = [&](const Operators& ops, const Tensors& x) { return ops.rms_norm(x[0], x[1], 1e-6, offset); };
    for (const std::vector<int64_t>& shape : kNormShapes) {
      expect_same(op, {random(shape, GetParam()), random({shape.back()}, GetParam())});
    }
  }
}

TEST_P(NativeOperators, GatedRmsNorm) {
  at::manual_seed(6);
  const auto op = [](const Operators& ops, const Tensors& x) { return ops.gated_rms_norm(x[0], x[1], x[2], 1e-6); };
  for (const std::vector<int64_t>& shape : kNormShapes) {
    expect_same(op, {random(shape, GetParam()), random(shape, GetParam()) * 4, random({shape.back()}, GetParam())});
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

// A gate for each element and one for each row; halves of one matrix, as a model's fused projection gives them.
TEST_P(NativeOperators, SigmoidGate) {
  at::manual_seed(13);
  const auto op = [](const Operators& ops, const Tensors& x) { return ops.sigmoid_gate(x[0], x[1]); };
  const auto halves = [](const Operators& ops, const Tensors& x) {
    const int64_t cols = x[0].size(-1) / 2;
    return ops.sigmoid_gate(x[0].narrow(-1, 0, cols), x[0].narrow(-1, cols, cols));
  };
  for (const std::vector<int64_t>& shape : kNormShapes) {
    std::vector<int64_t> one = shape, both = shape;
    one.back() = 1;
    both.back() *= 2;
    expect_same(op, {random(shape, GetParam()), random(shape, GetParam()) * 4});
    expect_same(op, {random(shape, GetParam()), random(one, GetParam()) * 4});
    expect_same(halves, {random(both, GetParam()) * 4});
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

TEST_P(NativeOperators, CausalConvByDocuments) {
  at::manual_seed(7);
  for (const std::vector<int64_t>& cu : std::vector<std::vector<int64_t>>{{0, 0}, {0, 1, 3, 3, 6, 40}, {0, 200, 201}}) {
    for (const auto& [channels, taps] :
         std::vector<std::array<int64_t, 2>>{{64, 4}, {50, 4}, {7, 1}, {17, 3}, {2, 6}}) {
      for (const bool final_state : {false, true}) {
        const auto op = [&](const Operators& ops, const Tensors& x) {
          const CausalConvResult result = ops.causal_conv1d_silu({.x_TC = x[0],
                                                                  .weight_CW = x[1],
                                                                  .cu_seqlens = cu,
                                                                  .initial_state_BCW = x[2],
                                                                  .needs_final_state = final_state});
          EXPECT_EQ(result.final_state_BCW.defined(), final_state);
          return final_state ? at::cat({result.out_TC.flatten(), result.final_state_BCW.flatten()}) : result.out_TC;
        };
        const auto documents = static_cast<int64_t>(cu.size()) - 1;
        expect_same(op, {random({cu.back(), channels}, GetParam()), random({channels, taps}, GetParam()),
                         random({documents, channels, taps - 1}, GetParam())});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NativeOperators, testing::ValuesIn(all_cases()), [](const auto& instance) {
  return std::string(instance.param.dtype == at::kFloat ? "Fp32" : "Bf16") + instance.param.level.name;
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

// Against ATen's grouped convolution with its padding in front.
TEST(CausalConv, IsAGroupedConvolutionAndSilu) {
  at::manual_seed(8);
  const int64_t tokens = 21, channels = 10, taps = 4;
  const at::Tensor x = random({tokens, channels}, at::kFloat), weight = random({channels, taps}, at::kFloat);
  const std::vector<int64_t> cu = {0, tokens};
  const at::Tensor wanted =
      at::silu(at::conv1d(x.t().unsqueeze(0), weight.unsqueeze(1), {}, 1, taps - 1, 1, channels).narrow(2, 0, tokens));
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    const at::Tensor out =
        ops->causal_conv1d_silu({.x_TC = x, .weight_CW = weight, .cu_seqlens = cu, .initial_state_BCW = {}}).out_TC;
    EXPECT_LT((out - wanted[0].t()).abs().max().item<double>(), 1e-5) << ops->name;
  }
}

// A document in pieces, each after the final state of the one before, is the document.
TEST(CausalConv, ContinuesFromItsState) {
  at::manual_seed(9);
  const at::Tensor x = random({12, 20}, at::kFloat), weight = random({20, 4}, at::kFloat);
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    const auto conv = [&](int64_t begin, int64_t length, const at::Tensor& state) {
      const std::vector<int64_t> cu = {0, length};
      return ops->causal_conv1d_silu({.x_TC = x.narrow(0, begin, length),
                                      .weight_CW = weight,
                                      .cu_seqlens = cu,
                                      .initial_state_BCW = state,
                                      .needs_final_state = true});
    };
    const CausalConvResult whole = conv(0, 12, {});
    Tensors pieces;
    at::Tensor state;
    int64_t begin = 0;
    for (const int64_t length : {2, 1, 0, 8, 1}) {
      const CausalConvResult piece = conv(begin, length, state);
      pieces.push_back(piece.out_TC);
      state = piece.final_state_BCW;
      begin += length;
    }
    EXPECT_LT((at::cat(pieces) - whole.out_TC).abs().max().item<double>(), 1e-6) << ops->name;
    EXPECT_TRUE(at::equal(state, whole.final_state_BCW)) << ops->name;
  }
}

// Wherever documents begin and end, a pack is its documents: to the bit but for the gradient of the weight, which is
// the sum of theirs.
TEST(CausalConv, BordersAtEveryOffset) {
  at::manual_seed(11);
  const int64_t channels = 20, taps = 4;
  const at::Tensor weight = random({channels, taps}, at::kFloat);
  for (const Operators* ops : {&native_operators(), &reference_operators()}) {
    const auto conv = [&](const at::Tensor& x, const at::Tensor& grad, const std::vector<int64_t>& cu) -> Tensors {
      const Tensors leaves = {x.clone().set_requires_grad(true), weight.clone().set_requires_grad(true)};
      const CausalConvInput input{.x_TC = leaves[0], .weight_CW = leaves[1], .cu_seqlens = cu, .initial_state_BCW = {}};
      const at::Tensor out = ops->causal_conv1d_silu(input).out_TC;
      torch::autograd::backward({out}, {grad});
      return {out.detach(), leaves[0].grad(), leaves[1].grad()};
    };
    for (int64_t offset = 0; offset < 64; ++offset) {
      const std::vector<int64_t> cu = {0, offset, offset + 1, offset + 3, offset + 6, offset + 46};
      const at::Tensor x = random({cu.back(), channels}, at::kFloat), grad = random({cu.back(), channels}, at::kFloat);
      const Tensors packed = conv(x, grad, cu);
      at::Tensor grad_weight = at::zeros({channels, taps}, at::kDouble);
      for (size_t b = 0; b + 1 < cu.size(); ++b) {
        const int64_t begin = cu[b], length = cu[b + 1] - begin;
        if (length == 0) continue;
        const Tensors alone = conv(x.narrow(0, begin, length), grad.narrow(0, begin, length), {0, length});
        EXPECT_TRUE(at::equal(alone[0], packed[0].narrow(0, begin, length))) << ops->name << " after " << begin;
        EXPECT_TRUE(at::equal(alone[1], packed[1].narrow(0, begin, length))) << ops->name << " after " << begin;
        grad_weight += alone[2];
      }
      EXPECT_LE(largest_error(packed[2], grad_weight), 1e-6) << ops->name << " at " << offset;
    }
  }
}

// A weight's gradient sums over all tokens, and its error must not grow with their number.
TEST(WeightGradients, HoldOverManyRows) {
  at::manual_seed(12);
  const int64_t rows = 20011, cols = 24;
  const std::vector<int64_t> cu = {0, rows};
  const at::Tensor x = random({rows, cols}, at::kFloat) + 1, gate = random({rows, cols}, at::kFloat) + 1;
  const at::Tensor weight = random({cols}, at::kFloat), taps = random({cols, 4}, at::kFloat);
  using Op = std::function<at::Tensor(const Operators&, const Tensors&)>;
  const auto error_of = [](const Op& op, const Tensors& inputs) {
    const auto last_gradient = [&](const Operators& ops, at::ScalarType dtype) {
      Tensors leaves;
      for (const at::Tensor& input : inputs) leaves.push_back(input.to(dtype).clone().set_requires_grad(true));
      torch::autograd::backward({op(ops, leaves).sum()});
      return leaves.back().grad();
    };
    return largest_error(last_gradient(native_operators(), at::kFloat),
                         last_gradient(reference_operators(), at::kDouble));
  };
  EXPECT_LE(
      error_of([](const auto& ops, const auto& in) { return ops.rms_norm(in[0], in[1], 1e-6, 0.0); }, {x, weight}),
      3e-7);
  EXPECT_LE(error_of([](const auto& ops, const auto& in) { return ops.gated_rms_norm(in[0], in[1], in[2], 1e-6); },
                     {x, gate, weight}),
            3e-7);
  const Op conv = [&](const Operators& ops, const Tensors& in) {
    return ops.causal_conv1d_silu({.x_TC = in[0], .weight_CW = in[1], .cu_seqlens = cu, .initial_state_BCW = {}})
        .out_TC;
  };
  EXPECT_LE(error_of(conv, {x, taps}), 3e-7);
}

// Column 1 follows the height, column 2 the width, columns 0 and past the sections the time.
TEST(MultiAxisRope, TakesEachColumnFromItsAxis) {
  at::manual_seed(10);
  const int64_t columns = 8;
  const std::vector<int64_t> sections = {4, 2, 2};
  const std::array<int64_t, 8> axis = {0, 1, 2, 0, 1, 2, 0, 0};
  const at::Tensor cos = at::randn({50, columns}), sin = at::randn({50, columns});
  const at::Tensor positions = at::randint(0, 50, {3, 9}, at::kLong);
  const TokenAngles angles = interleaved_angles(positions, cos, sin, sections);
  for (int64_t t = 0; t < 9; ++t) {
    ASSERT_EQ(angles.positions_T[t].item<int64_t>(), t);
    for (int64_t r = 0; r < columns; ++r) {
      const int64_t position = positions[axis[static_cast<size_t>(r)]][t].item<int64_t>();
      EXPECT_EQ(angles.cos_TR[t][r].item<float>(), cos[position][r].item<float>()) << t << ", " << r;
      EXPECT_EQ(angles.sin_TR[t][r].item<float>(), sin[position][r].item<float>()) << t << ", " << r;
    }
  }
  const at::Tensor x = at::randn({9, 2, 20}), text = positions[0];
  const TokenAngles same = interleaved_angles(at::stack({text, text, text}), cos, sin, sections);
  const Operators& ops = native_operators();
  EXPECT_TRUE(at::equal(ops.rope(x, same.positions_T, same.cos_TR, same.sin_TR), ops.rope(x, text, cos, sin)));
}

TEST(OperatorTable, ListsEveryOperatorOfEachKernel) {
  std::set<std::string> native, reference;
  for (const OperatorInfo& row : operator_table()) {
    EXPECT_TRUE((row.kernel == "reference" ? reference : native).emplace(row.op).second) << row.op;
  }
  EXPECT_EQ(native, reference);
  EXPECT_EQ(native.size(), 12U);
}

}  // namespace
}  // namespace expertmesh::ops
