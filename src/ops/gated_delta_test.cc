// SPDX-License-Identifier: Apache-2.0
// The gated delta rule against its recurrence in fp64, token by token; gradients against finite differences.
#include "ops/gated_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ops/cpu/isa_testing.h"
#include "ops/new_tensor.h"
#include "ops/operators.h"

namespace expertmesh::ops {
namespace {

using Tensors = std::vector<at::Tensor>;
using Documents = std::vector<int64_t>;

enum { kQ, kK, kV, kG, kBeta, kState, kNumInputs };
constexpr std::array<const char*, kNumInputs> kNames = {"q", "k", "v", "g", "beta", "initial state"};

struct Sizes {
  int64_t key_heads, value_heads, key_dim, value_dim;
};

// fp64: the tests round them to what an operator takes.
Tensors random_inputs(const Documents& cu, const Sizes& sizes) {
  const int64_t tokens = cu.back();
  const auto documents = static_cast<int64_t>(cu.size()) - 1;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  return {at::randn({tokens, sizes.key_heads, sizes.key_dim}, options),
          at::randn({tokens, sizes.key_heads, sizes.key_dim}, options),
          at::randn({tokens, sizes.value_heads, sizes.value_dim}, options),
          -at::rand({tokens, sizes.value_heads}, options) * 0.3,
          at::rand({tokens, sizes.value_heads}, options),
          at::randn({documents, sizes.value_heads, sizes.key_dim, sizes.value_dim}, options)};
}

// As an operator takes them: q, k, v in `dtype`, the rest in fp32; fp64 for all stays fp64.
Tensors rounded(const Tensors& inputs, at::ScalarType dtype) {
  Tensors result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::ScalarType type = i <= kV || dtype == at::kDouble ? dtype : at::kFloat;
    result.push_back(inputs[i].defined() ? inputs[i].to(type) : at::Tensor());
  }
  return result;
}

GatedDeltaInput input_of(const Tensors& x, const Documents& cu, int64_t chunk_size = 64) {
  return {.q_TKD = x[kQ],
          .k_TKD = x[kK],
          .v_TVE = x[kV],
          .g_TV = x[kG],
          .beta_TV = x[kBeta],
          .cu_seqlens = cu,
          .initial_state_BVDE = x[kState],
          .chunk_size = chunk_size,
          .needs_final_state = true};
}

at::Tensor unit(const at::Tensor& row) {
  const at::Tensor x = row.to(at::kDouble);
  return x / (x * x).sum().add(1e-6).sqrt();
}

// One token of one head, as the definition reads: gives the output and replaces the state [D, E].
at::Tensor recur(const Tensors& x, int64_t t, int64_t h, at::Tensor& state) {
  const int64_t key_head = h / (x[kV].size(1) / x[kQ].size(1));
  const at::Tensor q = unit(x[kQ][t][key_head]), k = unit(x[kK][t][key_head]), v = x[kV][t][h].to(at::kDouble);
  state = state * std::exp(x[kG][t][h].item<double>());
  const at::Tensor written = (v - state.t().mv(k)) * x[kBeta][t][h].item<double>();
  state = state + k.outer(written);
  return state.t().mv(q) / std::sqrt(static_cast<double>(q.numel()));
}

GatedDeltaResult recurrence(const Tensors& x, const Documents& cu) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto documents = static_cast<int64_t>(cu.size()) - 1;
  const int64_t heads = x[kV].size(1), key_dim = x[kK].size(2), value_dim = x[kV].size(2);
  GatedDeltaResult result{at::zeros(x[kV].sizes(), options),
                          at::zeros({documents, heads, key_dim, value_dim}, options)};
  for (int64_t b = 0; b < documents; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      at::Tensor state = x[kState].defined() ? x[kState][b][h].to(at::kDouble) : result.final_state_BVDE[b][h];
      for (int64_t t = cu[static_cast<size_t>(b)]; t < cu[static_cast<size_t>(b) + 1]; ++t) {
        result.out_TVE[t][h].copy_(recur(x, t, h, state));
      }
      result.final_state_BVDE[b][h].copy_(state);
    }
  }
  return result;
}

double error(const at::Tensor& got, const at::Tensor& wanted) {
  if (wanted.numel() == 0) return 0.0;
  return (got.to(at::kDouble) - wanted.to(at::kDouble)).norm().item<double>() /
         std::max(wanted.norm().item<double>(), 1e-30);
}

// Sums over the results with fixed weights, so that a gradient is a number to compare with.
struct Probe {
  at::Tensor out, state;

  explicit Probe(const GatedDeltaResult& result)
      : out(at::randn_like(result.out_TVE)), state(at::randn_like(result.final_state_BVDE)) {}

  double sum(const GatedDeltaResult& result) const {
    return ((result.out_TVE * out).sum() + (result.final_state_BVDE * state).sum()).item<double>();
  }
};

// Gradients of all inputs for the probe's gradient of the results.
Tensors gradients(const Operators& ops, const Tensors& inputs, const Documents& cu, int64_t chunk_size,
                  const Probe& probe) {
  Tensors leaves, result;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().clone().set_requires_grad(true) : input);
  }
  const GatedDeltaResult got = ops.gated_delta_rule(input_of(leaves, cu, chunk_size));
  torch::autograd::backward({got.out_TVE, got.final_state_BVDE}, {probe.out.to(got.out_TVE.scalar_type()),
                                                                  probe.state.to(got.final_state_BVDE.scalar_type())});
  for (const at::Tensor& leaf : leaves) {  // an input without elements has none from ATen
    result.push_back(leaf.defined() && leaf.grad().defined() ? leaf.grad() : leaf);
  }
  return result;
}

// One document of a pack.
Tensors document(const Tensors& inputs, const Documents& cu, size_t index) {
  const int64_t begin = cu[index], length = cu[index + 1] - begin;
  Tensors part;
  for (size_t i = 0; i < kState; ++i) part.push_back(inputs[i].narrow(0, begin, length));
  part.push_back(inputs[kState].narrow(0, static_cast<int64_t>(index), 1));
  return part;
}

const std::vector<Documents> kDocuments = {{0, 1},       {0, 2, 2, 5},    {0, 15, 31}, {0, 16, 33},
                                           {0, 63, 127}, {0, 65, 65, 66}, {0, 197},    {0, 0}};
const std::vector<Sizes> kSizes = {{1, 1, 16, 16}, {2, 4, 16, 32}, {1, 3, 10, 7}, {2, 2, 40, 24}};

// New memory is NaN, so that an element that is never written shows.
class GatedDelta : public testing::TestWithParam<const Operators*> {
 protected:
  void SetUp() override { TEST_poison_new_memory(true); }
  void TearDown() override { TEST_poison_new_memory(poisoned_before_); }

  const bool poisoned_before_ = poisons_new_memory();
  const Operators& ops_ = *GetParam();
};

TEST_P(GatedDelta, IsTheRecurrence) {
  cpu::for_each_isa([&] {
    at::manual_seed(1);
    for (const Documents& cu : kDocuments) {
      for (const Sizes& sizes : kSizes) {
        const Tensors inputs = rounded(random_inputs(cu, sizes), at::kFloat);
        const GatedDeltaResult wanted = recurrence(inputs, cu);
        for (const int64_t chunk_size : {16, 32, 64}) {
          const GatedDeltaResult got = ops_.gated_delta_rule(input_of(inputs, cu, chunk_size));
          ASSERT_EQ(got.out_TVE.sizes(), wanted.out_TVE.sizes());
          ASSERT_EQ(got.final_state_BVDE.sizes(), wanted.final_state_BVDE.sizes());
          EXPECT_LE(error(got.out_TVE, wanted.out_TVE), 2e-6) << cu.back() << " tokens, chunks of " << chunk_size;
          EXPECT_LE(error(got.final_state_BVDE, wanted.final_state_BVDE), 2e-6) << cu.back() << " tokens";
        }
        const GatedDeltaResult got = ops_.gated_delta_step(input_of(inputs, cu));
        EXPECT_LE(error(got.out_TVE, wanted.out_TVE), 2e-6) << cu.back() << " tokens, one by one";
        EXPECT_LE(error(got.final_state_BVDE, wanted.final_state_BVDE), 2e-6) << cu.back() << " tokens, one by one";
      }
    }
  });
}

// No decay, hardly any, nearly all; nothing written, everything overwritten; with one strong decay between weak ones.
TEST_P(GatedDelta, HoldsAtTheEndsOfItsGates) {
  at::manual_seed(2);
  const Documents cu = {0, 100, 170};
  const Tensors random = random_inputs(cu, {1, 2, 32, 16});
  at::Tensor spike = at::full_like(random[kG], -1e-3);
  spike.narrow(0, 30, 1).fill_(-50.0);
  Tensors decays = {spike};
  for (const double g : {0.0, -1e-6, -5.0, -50.0}) decays.push_back(at::full_like(random[kG], g));
  for (const at::Tensor& g : decays) {
    for (const double beta : {0.0, 1.0}) {
      Tensors inputs = random;
      inputs[kG] = g;
      inputs[kBeta].fill_(beta);
      inputs = rounded(inputs, at::kFloat);
      const GatedDeltaResult wanted = recurrence(inputs, cu);
      for (const auto op : {ops_.gated_delta_rule, ops_.gated_delta_step}) {
        const GatedDeltaResult got = op(input_of(inputs, cu));
        EXPECT_LE(error(got.out_TVE, wanted.out_TVE), 1e-5) << "g " << g[0][0].item<double>() << ", beta " << beta;
        EXPECT_LE(error(got.final_state_BVDE, wanted.final_state_BVDE), 1e-5) << "beta " << beta;
      }
    }
  }
}

TEST_P(GatedDelta, StartsAtZeroWithoutAState) {
  at::manual_seed(3);
  const Documents cu = {0, 70, 70, 75};
  Tensors inputs = rounded(random_inputs(cu, {2, 4, 16, 16}), at::kFloat);
  inputs[kState] = at::Tensor();
  const GatedDeltaResult wanted = recurrence(inputs, cu);
  for (const auto op : {ops_.gated_delta_rule, ops_.gated_delta_step}) {
    GatedDeltaInput input = input_of(inputs, cu);
    const GatedDeltaResult got = op(input);
    EXPECT_LE(error(got.out_TVE, wanted.out_TVE), 2e-6);
    EXPECT_LE(error(got.final_state_BVDE, wanted.final_state_BVDE), 2e-6);
    EXPECT_EQ(got.final_state_BVDE[1].abs().max().item<double>(), 0.0) << "the document without tokens";
    input.needs_final_state = false;
    EXPECT_FALSE(op(input).final_state_BVDE.defined());
  }
}

// A packed batch is its documents one by one, to the bit; a document in pieces is the document.
TEST_P(GatedDelta, DocumentsDoNotSeeEachOther) {
  at::manual_seed(4);
  const Documents cu = {0, 80, 83, 200};
  const Tensors inputs = rounded(random_inputs(cu, {2, 4, 32, 16}), at::kFloat);
  const GatedDeltaResult packed = ops_.gated_delta_rule(input_of(inputs, cu));
  for (size_t b = 0; b + 1 < cu.size(); ++b) {
    const int64_t begin = cu[b], length = cu[b + 1] - begin;
    const Documents alone = {0, length};
    const GatedDeltaResult got = ops_.gated_delta_rule(input_of(document(inputs, cu, b), alone));
    EXPECT_TRUE(at::equal(got.out_TVE, packed.out_TVE.narrow(0, begin, length))) << "document " << b;
    EXPECT_TRUE(at::equal(got.final_state_BVDE[0], packed.final_state_BVDE[static_cast<int64_t>(b)]))
        << "document " << b;
  }
}

// Wherever in a chunk a document begins or ends: values and gradients of a pack are those of its documents, to the bit.
TEST_P(GatedDelta, BordersAtEveryOffset) {
  at::manual_seed(10);
  for (const int64_t chunk_size : {16, 32, 64}) {
    for (int64_t offset = 0; offset < chunk_size; ++offset) {
      const Documents cu = {0, offset, offset + 1, offset + 3, offset + 6, offset + 7 + chunk_size};
      const Tensors inputs = rounded(random_inputs(cu, {1, 2, 16, 16}), at::kFloat);
      const GatedDeltaResult packed = ops_.gated_delta_rule(input_of(inputs, cu, chunk_size));
      const Probe probe(packed);
      const Tensors grads = gradients(ops_, inputs, cu, chunk_size, probe);
      for (size_t b = 0; b + 1 < cu.size(); ++b) {
        const auto index = static_cast<int64_t>(b);
        const Documents alone = {0, cu[b + 1] - cu[b]};
        const Tensors part = document(inputs, cu, b), wanted = document(grads, cu, b);
        const GatedDeltaResult got = ops_.gated_delta_rule(input_of(part, alone, chunk_size));
        EXPECT_TRUE(at::equal(got.out_TVE, packed.out_TVE.narrow(0, cu[b], alone[1]))) << offset << ", document " << b;
        EXPECT_TRUE(at::equal(got.final_state_BVDE[0], packed.final_state_BVDE[index])) << offset;
        Probe own = probe;
        own.out = probe.out.narrow(0, cu[b], alone[1]);
        own.state = probe.state.narrow(0, index, 1);
        const Tensors own_grads = gradients(ops_, part, alone, chunk_size, own);
        for (size_t i = 0; i < kNumInputs; ++i) {
          if (part[i].numel() == 0) continue;
          EXPECT_TRUE(at::equal(own_grads[i], wanted[i]))
              << kNames[i] << ", document " << b << " after " << cu[b] << " tokens, chunks of " << chunk_size;
        }
      }
    }
  }
}

TEST_P(GatedDelta, ContinuesFromItsState) {
  at::manual_seed(5);
  const Documents cu = {0, 90};
  const Tensors inputs = rounded(random_inputs(cu, {1, 2, 16, 16}), at::kFloat);
  const GatedDeltaResult whole = ops_.gated_delta_rule(input_of(inputs, cu));
  Tensors outputs, part = inputs;
  int64_t begin = 0;
  for (const int64_t length : {70, 17, 1, 2}) {  // a prompt, another piece of it, then decoding
    for (size_t i = 0; i < kState; ++i) part[i] = inputs[i].narrow(0, begin, length);
    const Documents piece = {0, length};
    const auto op = length < 16 ? ops_.gated_delta_step : ops_.gated_delta_rule;
    const GatedDeltaResult got = op(input_of(part, piece));
    outputs.push_back(got.out_TVE);
    part[kState] = got.final_state_BVDE;
    begin += length;
  }
  EXPECT_LE(error(at::cat(outputs), whole.out_TVE), 2e-6);
  EXPECT_LE(error(part[kState], whole.final_state_BVDE), 2e-6);
}

// Values and gradients in fp32 and bf16 against the reference in fp64 on the same numbers. In bf16 the error may be
// that of the reference, which rounds where it must.
TEST_P(GatedDelta, ErrorsAreThoseOfTheReference) {
  at::manual_seed(6);
  const Operators& reference = reference_operators();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Documents& cu : kDocuments) {
      for (const Sizes& sizes : kSizes) {
        const Tensors inputs = rounded(random_inputs(cu, sizes), dtype);
        const Tensors wide = rounded(inputs, at::kDouble);
        const GatedDeltaResult wanted = recurrence(wide, cu);
        Probe probe(wanted);
        probe.out = probe.out.to(dtype).to(at::kDouble);
        for (const int64_t chunk_size : {16, 32, 64}) {
          const GatedDeltaResult value = ops_.gated_delta_rule(input_of(inputs, cu, chunk_size));
          const GatedDeltaResult usual_value = reference.gated_delta_rule(input_of(inputs, cu, chunk_size));
          EXPECT_LE(error(value.out_TVE, wanted.out_TVE), 1.1 * error(usual_value.out_TVE, wanted.out_TVE) + 2e-6);
          EXPECT_LE(error(value.final_state_BVDE, wanted.final_state_BVDE), 2e-6) << "the state is fp32";
          const Tensors exact = gradients(reference, wide, cu, chunk_size, probe);
          const Tensors got = gradients(ops_, inputs, cu, chunk_size, probe);
          const Tensors usual = gradients(reference, inputs, cu, chunk_size, probe);
          for (size_t i = 0; i < kNumInputs; ++i) {
            ASSERT_EQ(got[i].scalar_type(), inputs[i].scalar_type());
            const double bound = dtype == at::kFloat ? 1e-5 : 1.1 * error(usual[i], exact[i]) + 1e-5;
            EXPECT_LE(error(got[i], exact[i]), bound)
                << kNames[i] << ", " << cu.back() << " tokens, chunks of " << chunk_size;
          }
        }
      }
    }
  }
}

// Without a gradient of the final state, or of the output.
TEST_P(GatedDelta, GradientsOfOneResultAlone) {
  at::manual_seed(7);
  const Documents cu = {0, 40};
  const Tensors inputs = rounded(random_inputs(cu, {1, 2, 16, 16}), at::kFloat), wide = rounded(inputs, at::kDouble);
  for (const bool of_out : {true, false}) {
    const auto grad = [&](const Operators& ops, const Tensors& x) {
      const at::Tensor v = x[kV].clone().set_requires_grad(true);
      Tensors with_leaf = x;
      with_leaf[kV] = v;
      const GatedDeltaResult got = ops.gated_delta_rule(input_of(with_leaf, cu));
      const at::Tensor result = of_out ? got.out_TVE : got.final_state_BVDE;
      torch::autograd::backward({result.sum()});
      return v.grad();
    };
    EXPECT_LE(error(grad(ops_, inputs), grad(reference_operators(), wide)), 1e-5);
  }
}

// Views of one matrix, as a model's fused projection gives them.
TEST_P(GatedDelta, TakesRowsThatAreApart) {
  at::manual_seed(8);
  const Documents cu = {0, 37};
  Tensors inputs = rounded(random_inputs(cu, {2, 4, 16, 16}), at::kFloat);
  const GatedDeltaResult wanted = ops_.gated_delta_rule(input_of(inputs, cu));
  const at::Tensor fused = at::cat({inputs[kQ].flatten(1), inputs[kK].flatten(1), inputs[kV].flatten(1)}, 1);
  inputs[kQ] = fused.narrow(1, 0, 32).view({37, 2, 16});
  inputs[kK] = fused.narrow(1, 32, 32).view({37, 2, 16});
  inputs[kV] = fused.narrow(1, 64, 64).view({37, 4, 16});
  for (const auto op : {ops_.gated_delta_rule, ops_.gated_delta_step}) {
    EXPECT_LE(error(op(input_of(inputs, cu)).out_TVE, wanted.out_TVE), 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GatedDelta, testing::Values(&native_operators(), &reference_operators()),
                         [](const auto& instance) { return std::string(instance.param->name); });

double largest_error(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got.to(at::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
}

// What the gradients of log-decays g = -e^A_log softplus(a + dt_bias) become for the parameters behind them.
std::map<std::string, at::Tensor> behind(const at::Tensor& grad_g_TV, const Tensors& decay_parameters) {
  Tensors leaves;
  for (const at::Tensor& x : decay_parameters) leaves.push_back(x.detach().clone().set_requires_grad(true));
  torch::autograd::backward({-at::exp(leaves[0]) * at::softplus(leaves[2] + leaves[1])}, {grad_g_TV.to(at::kDouble)});
  return {{"g", grad_g_TV}, {"A_log", leaves[0].grad()}, {"dt_bias", leaves[1].grad()}, {"a", leaves[2].grad()}};
}

// Decays of e^-10 to e^-25 a token, everywhere or between weak ones, as the initial numbers of a model give them. Their
// gradients are as small as they are: nothing larger may pass through the sums. The bound is the kernel's alone: in
// fp32 the reference, which takes decays from sums, is up to 3e-3 off. tests/golden/strong_decays.py draws the same
// numbers for transformers; the figures of both are in docs/results/strong_decays.md.
TEST(StrongDecays, CostNoDigits) {
  Operators by_token = reference_operators();
  by_token.gated_delta_rule = by_token.gated_delta_step;
  const Documents cu = {0, 90, 130, 220};
  for (const double spread : {0.5, 4.0}) {  // of a; 0.5: strong everywhere
    at::manual_seed(11);
    Tensors inputs = random_inputs(cu, {2, 4, 16, 16});
    const std::vector<double> rates = {8.0, 10.0, 13.0, 16.0};
    const Tensors decay_parameters = {at::tensor(rates, at::kDouble).log(),
                                      at::tensor({1.0, 1.0, 1.0, 1.0}, at::kDouble),
                                      at::randn({cu.back(), 4}, at::kDouble) * spread};
    inputs[kG] = -at::exp(decay_parameters[0]) * at::softplus(decay_parameters[2] + decay_parameters[1]);
    inputs[kState] = at::Tensor();
    inputs = rounded(inputs, at::kFloat);
    const Tensors wide = rounded(inputs, at::kDouble);
    const Probe probe(recurrence(wide, cu));
    const auto parts_of = [&](const Operators& ops, const Tensors& x, int64_t chunk_size) {
      return behind(gradients(ops, x, cu, chunk_size, probe)[kG], decay_parameters);
    };
    const auto exact = parts_of(by_token, wide, 64);
    for (const int64_t chunk_size : {16, 32, 64}) {
      const auto native = parts_of(native_operators(), inputs, chunk_size);
      const auto reference = parts_of(reference_operators(), inputs, chunk_size);
      for (const auto& [name, wanted] : exact) {
        const double error = largest_error(native.at(name), wanted), usual = largest_error(reference.at(name), wanted);
        RecordProperty("spread " + std::to_string(spread) + ", chunk " + std::to_string(chunk_size) + ", " + name,
                       std::to_string(error * 1e6) + "e-6, reference " + std::to_string(usual * 1e6) + "e-6");
        EXPECT_LE(error, 1e-6) << name << ", spread " << spread << ", chunks of " << chunk_size;
      }
    }
  }
}

// The reference in fp64 along random directions.
TEST(GatedDeltaReference, GradientsAreFiniteDifferences) {
  at::manual_seed(9);
  const Operators& ops = reference_operators();
  for (const Documents& cu : std::vector<Documents>{{0, 3}, {0, 20, 20, 22}, {0, 53}}) {
    const Tensors inputs = random_inputs(cu, {2, 4, 8, 6});
    const auto rule = [&](const Tensors& x) { return ops.gated_delta_rule(input_of(x, cu, 16)); };
    const Probe probe(rule(inputs));
    const Tensors grads = gradients(ops, inputs, cu, 16, probe);
    for (size_t i = 0; i < kNumInputs; ++i) {
      const at::Tensor direction = at::randn_like(inputs[i]);
      Tensors ahead = inputs, behind = inputs;
      constexpr double kStep = 1e-5;
      ahead[i] = inputs[i] + kStep * direction;
      behind[i] = inputs[i] - kStep * direction;
      const double slope = (probe.sum(rule(ahead)) - probe.sum(rule(behind))) / (2.0 * kStep);
      EXPECT_NEAR((grads[i] * direction).sum().item<double>(), slope, 1e-7 * std::max(1.0, std::abs(slope)))
          << kNames[i];
    }
  }
}

}  // namespace
}  // namespace expertmesh::ops
