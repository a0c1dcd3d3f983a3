// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/isa_testing.h"
#include "ops/operators.h"

namespace expertmesh::ops {
namespace {

struct Problem {
  at::Tensor hidden, weight, targets, weights;
};

// About a third of the rows have no target.
Problem make_problem(int64_t tokens, int64_t hidden, int64_t vocab, at::ScalarType dtype) {
  at::manual_seed(7);
  Problem problem{at::randn({tokens, hidden}).to(dtype), (at::randn({vocab, hidden}) * 0.3).to(dtype),
                  at::randint(0, vocab, {tokens}, at::kLong), at::randn({tokens}).abs()};
  problem.targets.masked_fill_(at::randint(0, 3, {tokens}).eq(0), -100);
  return problem;
}

struct Exact {
  double loss;
  at::Tensor grad_hidden, grad_weight, logprobs;
};

// In fp64 through autograd.
Exact exact(const Problem& problem, double scale) {
  const at::Tensor hidden = problem.hidden.to(at::kDouble).set_requires_grad(true);
  const at::Tensor weight = problem.weight.to(at::kDouble).set_requires_grad(true);
  const at::Tensor has_target = problem.targets.ne(-100);
  const at::Tensor logprobs =
      at::log_softmax(at::mm(hidden, weight.t()), -1).gather(1, problem.targets.clamp_min(0).unsqueeze(1)).squeeze(1) *
      has_target;
  const at::Tensor loss = -(logprobs * problem.weights.to(at::kDouble)).sum() * scale;
  torch::autograd::backward({loss});
  return {loss.item<double>(), hidden.grad(), weight.grad(), logprobs.detach()};
}

double relative(const at::Tensor& got, const at::Tensor& wanted) {
  return ((got.to(at::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
}

void expect_exact(const Operators& ops, const Problem& problem, double bound, int64_t logits_bytes = 1 << 20) {
  const Exact wanted = exact(problem, 0.01);
  const at::Tensor grad_weight = at::full(problem.weight.sizes(), std::nan(""));
  CrossEntropyInput input{.hidden_TH = problem.hidden,
                          .weight_VH = problem.weight,
                          .targets_T = problem.targets,
                          .weights_T = problem.weights,
                          .scale = 0.01,
                          .needs_grad_hidden = true,
                          .grad_weight_VH = grad_weight,
                          .overwrites_grad_weight = true,
                          .logits_bytes = logits_bytes};
  ops.linear_cross_entropy(input);
  input.overwrites_grad_weight = false;
  const CrossEntropyResult got = ops.linear_cross_entropy(input);  // the second gradient is added to the first
  EXPECT_NEAR(got.loss, wanted.loss, bound * wanted.loss) << ops.name;
  EXPECT_LT(relative(got.grad_hidden_TH, wanted.grad_hidden), bound) << ops.name;
  EXPECT_LT(relative(grad_weight / 2, wanted.grad_weight), bound) << ops.name;
  const at::Tensor logprobs = ops.linear_logprobs(problem.hidden, problem.weight, problem.targets);
  EXPECT_LT((logprobs - wanted.logprobs).abs().max().item<double>(), 10 * bound) << ops.name;
  const at::Tensor untouched = got.grad_hidden_TH.masked_fill(problem.targets.ne(-100).unsqueeze(1), 0);
  EXPECT_EQ(untouched.abs().sum().item<double>(), 0.0) << ops.name;
}

TEST(LinearCrossEntropy, Fp32EqualsFp64) {
  cpu::for_each_isa([&] {
    for (const Operators* ops : {&native_operators(), &reference_operators()}) {
      expect_exact(*ops, make_problem(37, 24, 509, at::kFloat), 3e-6);
      expect_exact(*ops, make_problem(3, 8, 16, at::kFloat), 3e-6);
    }
  });
}

TEST(LinearCrossEntropy, Bf16StaysWithinItsRounding) {
  cpu::for_each_isa([&] {
    for (const Operators* ops : {&native_operators(), &reference_operators()}) {
      expect_exact(*ops, make_problem(70, 32, 1000, at::kBFloat16), 1e-2);
    }
  });
}

// Several chunks of logits, the last one shorter; a budget below one row; several blocks of the weight's gradient.
TEST(LinearCrossEntropy, ChunksMakeNoDifference) {
  for (const int64_t budget : {1, 300000, 1000000}) {
    expect_exact(native_operators(), make_problem(150, 16, 2003, at::kFloat), 3e-6, budget);
    expect_exact(native_operators(), make_problem(150, 16, 2003, at::kBFloat16), 1e-2, budget);
  }
  expect_exact(native_operators(), make_problem(6, 16, 300001, at::kBFloat16), 1e-2);
}

// Hidden sizes that own tiles take (multiples of 32) and others; vocabularies and rows that fill no group; chunks.
TEST(LinearCrossEntropy, OwnTilesOfEverySize) {
  cpu::for_each_isa([] {
    for (const auto& [tokens, hidden, vocab] : std::vector<std::array<int64_t, 3>>{
             {2, 64, 95}, {37, 96, 97}, {130, 160, 300}, {200, 64, 1155}, {65, 60, 193}, {40, 37, 500}}) {
      expect_exact(native_operators(), make_problem(tokens, hidden, vocab, at::kBFloat16), 1e-2);
      expect_exact(native_operators(), make_problem(tokens, hidden, vocab, at::kBFloat16), 1e-2, vocab * 64 * 2);
    }
  });
}

// Each gradient alone, and views that start anywhere, give the same bits; so does any number of threads.
TEST(LinearCrossEntropy, OneGradientAloneAndViewsThatAreUnaligned) {
  const int64_t tokens = 150, hidden = 96, vocab = 3001;
  const Problem problem = make_problem(tokens, hidden, vocab, at::kBFloat16);
  const auto run = [&](const at::Tensor& x, const at::Tensor& weight, bool grad_hidden, bool grad_weight) {
    const at::Tensor sum = grad_weight ? at::zeros({vocab, hidden}) : at::Tensor();
    const CrossEntropyResult result = native_operators().linear_cross_entropy({.hidden_TH = x,
                                                                               .weight_VH = weight,
                                                                               .targets_T = problem.targets,
                                                                               .weights_T = problem.weights,
                                                                               .scale = 0.01,
                                                                               .needs_grad_hidden = grad_hidden,
                                                                               .grad_weight_VH = sum});
    return std::tuple(result.loss, result.grad_hidden_TH, sum);
  };
  const auto [loss, grad_x, grad_w] = run(problem.hidden, problem.weight, true, true);
  const auto shifted = [](const at::Tensor& x) {
    const at::Tensor memory = at::zeros({x.numel() + 1}, x.options());
    memory.narrow(0, 1, x.numel()).copy_(x.flatten());
    return memory.narrow(0, 1, x.numel()).view(x.sizes());
  };
  EXPECT_EQ(std::get<0>(run(problem.hidden, problem.weight, false, false)), loss);
  EXPECT_TRUE(at::equal(std::get<1>(run(problem.hidden, problem.weight, true, false)), grad_x));
  EXPECT_TRUE(at::equal(std::get<2>(run(problem.hidden, problem.weight, false, true)), grad_w));
  const auto [loss_2, grad_x_2, grad_w_2] = run(shifted(problem.hidden), shifted(problem.weight), true, true);
  EXPECT_EQ(loss_2, loss);
  EXPECT_TRUE(at::equal(grad_x_2, grad_x));
  EXPECT_TRUE(at::equal(grad_w_2, grad_w));
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  const auto [loss_3, grad_x_3, grad_w_3] = run(problem.hidden, problem.weight, true, true);
  at::set_num_threads(threads);
  EXPECT_EQ(loss_3, loss);
  EXPECT_TRUE(at::equal(grad_x_3, grad_x));
  EXPECT_TRUE(at::equal(grad_w_3, grad_w));
}

// A weight or a hidden state that is not finite shows in the loss and in the gradients.
TEST(LinearCrossEntropy, WhatIsNotFiniteShows) {
  cpu::for_each_isa([] {
    for (const float bad : {std::nanf(""), INFINITY}) {
      Problem problem = make_problem(8, 32, 200, at::kBFloat16);
      problem.targets.fill_(3);
      problem.weight[150][7] = bad;
      const CrossEntropyResult got = native_operators().linear_cross_entropy({.hidden_TH = problem.hidden,
                                                                              .weight_VH = problem.weight,
                                                                              .targets_T = problem.targets,
                                                                              .weights_T = {},
                                                                              .scale = 1.0,
                                                                              .needs_grad_hidden = true,
                                                                              .grad_weight_VH = {}});
      EXPECT_FALSE(std::isfinite(got.loss));
      EXPECT_FALSE(at::isfinite(got.grad_hidden_TH).all().item<bool>());
    }
  });
}

TEST(LinearCrossEntropy, NothingToPredictCostsNothing) {
  cpu::for_each_isa([&] {
    for (const Operators* ops : {&native_operators(), &reference_operators()}) {
      for (const int64_t tokens : {0, 4}) {
        Problem problem = make_problem(tokens, 8, 32, at::kFloat);
        problem.targets.fill_(-100);
        const at::Tensor grad_weight = at::full(problem.weight.sizes(), std::nan(""));
        const CrossEntropyResult got = ops->linear_cross_entropy({.hidden_TH = problem.hidden,
                                                                  .weight_VH = problem.weight,
                                                                  .targets_T = problem.targets,
                                                                  .weights_T = {},
                                                                  .scale = 1.0,
                                                                  .needs_grad_hidden = true,
                                                                  .grad_weight_VH = grad_weight,
                                                                  .overwrites_grad_weight = true});
        EXPECT_EQ(got.loss, 0.0);
        EXPECT_EQ(grad_weight.abs().sum().item<double>(), 0.0);
        EXPECT_EQ(got.grad_hidden_TH.sizes(), problem.hidden.sizes());
        EXPECT_EQ(got.grad_hidden_TH.abs().sum().item<double>(), 0.0);
        EXPECT_EQ(ops->linear_logprobs(problem.hidden, problem.weight, problem.targets).numel(), tokens);
      }
    }
  });
}

TEST(LinearCrossEntropy, AWrongTargetIsCaught) {
  Problem problem = make_problem(4, 8, 32, at::kFloat);
  problem.targets[2] = 32;
  EXPECT_ANY_THROW(native_operators().linear_logprobs(problem.hidden, problem.weight, problem.targets));
}

// LOSS-01: log-probabilities of bf16 logits are those of fp64 over the same numbers.
TEST(CrossEntropyRows, Bf16LogitsLoseNothing) {
  at::manual_seed(11);
  for (const int64_t vocab : {int64_t{512}, int64_t{151936}}) {
    const at::Tensor logits = (at::randn({8, vocab}) * 4).to(at::kBFloat16);
    const at::Tensor wanted = at::log_softmax(logits.to(at::kDouble), -1);
    const std::vector<int64_t> targets = {0, 1, 2, 3, 100, 200, 300, vocab - 1};
    std::vector<double> logprobs(8);
    const at::Tensor copy = logits.clone();
    cpu::cross_entropy_rows(static_cast<cpu::Bf16*>(copy.mutable_data_ptr()), targets.data(), nullptr, logprobs.data(),
                            8, vocab);
    EXPECT_TRUE(copy.equal(logits)) << "without gradient the logits stay";
    for (int64_t row = 0; row < 8; ++row) {
      EXPECT_NEAR(logprobs[row], (wanted[row][targets[row]].item<double>()), 1e-6);
      EXPECT_NEAR(static_cast<float>(logprobs[row]), (wanted[row][targets[row]].item<double>()), 1e-6);
    }
  }
}

// tests/cases/values/sft_loss.json
TEST(CrossEntropyRows, NumbersOfTheReference) {
  std::vector<float> logits = {1.5F, 1.5F, -3.0F, 0.25F, -2.0F, 4.0F, 0.0F, 1.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  const std::vector<int64_t> targets = {1, 3, 0};
  std::vector<double> logprobs(3);
  cpu::cross_entropy_rows(logits.data(), targets.data(), nullptr, logprobs.data(), 3, 4);
  EXPECT_NEAR(logprobs[0], -0.831871103, 1e-6);
  EXPECT_NEAR(logprobs[1], -3.06820192, 1e-6);
  EXPECT_NEAR(logprobs[2], -1.38629436, 1e-6);
  EXPECT_NEAR(-(logprobs[0] + 0.5 * logprobs[1] + logprobs[2]) / 2.5, 1.50090597, 1e-6);
}

TEST(CrossEntropyRows, InfiniteAndNanLogitsShow) {
  cpu::for_each_isa([&] {
    for (const float bad : {std::nanf(""), INFINITY}) {
      std::vector<float> logits(100, 1.0F);
      logits[60] = bad;
      const int64_t target = 3;
      double logprob = 0.0;
      cpu::cross_entropy_rows(logits.data(), &target, nullptr, &logprob, 1, 100);
      EXPECT_FALSE(std::isfinite(logprob));
    }
    std::vector<float> logits(100, -INFINITY);
    logits[3] = 5.0F;
    const int64_t target = 3;
    double logprob = 1.0;
    cpu::cross_entropy_rows(logits.data(), &target, nullptr, &logprob, 1, 100);
    EXPECT_EQ(logprob, 0.0);
  });
}

// Peak resident memory since the last reset.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }
int64_t peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) / 1024;
  }
  return -1;
}

// LOSS-08: 2048 tokens, 248,320 ids, fp32: the logits alone would be 2 GB.
TEST(LinearCrossEntropy, MemoryDoesNotGrowWithTheSequence) {
  at::manual_seed(13);
  const at::Tensor hidden = at::randn({2048, 64}), weight = at::randn({248320, 64}) * 0.1;
  const at::Tensor targets = at::randint(0, 248320, {2048}, at::kLong);
  const at::Tensor grad_weight = at::zeros(weight.sizes());
  reset_peak();
  const int64_t before = peak_mib();
  const CrossEntropyResult got = native_operators().linear_cross_entropy({.hidden_TH = hidden,
                                                                          .weight_VH = weight,
                                                                          .targets_T = targets,
                                                                          .weights_T = {},
                                                                          .scale = 1.0 / 2048,
                                                                          .needs_grad_hidden = true,
                                                                          .grad_weight_VH = grad_weight});
  EXPECT_GT(before, 0);
  EXPECT_LT(peak_mib() - before, 512);
  double wanted = 0.0;
  for (int64_t row = 0; row < 2048; row += 64) {
    const at::Tensor logits = at::mm(hidden.narrow(0, row, 64), weight.t());
    wanted -= at::log_softmax(logits, -1).gather(1, targets.narrow(0, row, 64).unsqueeze(1)).sum().item<double>();
  }
  EXPECT_NEAR(got.loss, wanted / 2048, 1e-6 * wanted / 2048);
}

}  // namespace
}  // namespace expertmesh::ops
