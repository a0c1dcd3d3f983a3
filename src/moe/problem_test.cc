// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "moe/test_problem.h"
#include "moe/workload.h"

namespace expertmesh::moe {

Problem Problem::to(at::ScalarType dtype) const {
  Problem result = *this;
  for (at::Tensor* tensor : {&result.hidden_TH, &result.gate_up_proj, &result.down_proj, &result.grad_out_TH}) {
    *tensor = tensor->to(dtype);
  }
  if (dtype == at::kDouble) result.weights_TK = weights_TK.to(dtype);
  return result;
}

Problem Problem::tokens(int64_t begin, int64_t end) const {
  Problem result = *this;
  result.sizes.tokens = end - begin;
  for (at::Tensor* tensor : {&result.hidden_TH, &result.weights_TK, &result.ids_TK, &result.grad_out_TH}) {
    *tensor = tensor->slice(0, begin, end).contiguous();
  }
  return result;
}

Problem Problem::experts(int64_t begin, int64_t end) const {
  Problem result = *this;
  result.gate_up_proj = gate_up_proj.slice(0, begin, end).contiguous();
  result.down_proj = down_proj.slice(0, begin, end).contiguous();
  return result;
}

Problem make_problem(const ProblemSizes& sizes, int64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  const auto randn = [&](std::vector<int64_t> shape) { return at::randn(shape, generator, at::kFloat); };
  Problem problem;
  problem.sizes = sizes;
  problem.hidden_TH = randn({sizes.tokens, sizes.hidden});
  problem.grad_out_TH = randn({sizes.tokens, sizes.hidden});
  const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.hidden));
  problem.gate_up_proj = randn({sizes.experts, 2 * sizes.width, sizes.hidden}) * scale;
  problem.down_proj = randn({sizes.experts, sizes.hidden, sizes.width}) * (1.0 / std::sqrt(double(sizes.width)));
  problem.ids_TK = ids_tensor(
      workload_ids(
          {.tokens = sizes.tokens, .experts = sizes.experts, .top_k = sizes.top_k, .seed = static_cast<uint64_t>(seed)},
          /*rank=*/0, /*step=*/0),
      sizes.top_k);
  problem.weights_TK = at::rand({sizes.tokens, sizes.top_k}, generator, at::kFloat) + 0.1;
  return problem;
}

namespace {

// Leaves that require gradients, apart from the problem's own tensors.
Problem with_leaves(const Problem& problem) {
  Problem leaves = problem;
  for (at::Tensor* tensor : {&leaves.hidden_TH, &leaves.weights_TK, &leaves.gate_up_proj, &leaves.down_proj}) {
    *tensor = tensor->detach().clone().set_requires_grad(true);
  }
  return leaves;
}

Gradients collect(const Problem& leaves, const at::Tensor& out) {
  const auto grad_of = [](const at::Tensor& leaf) {
    return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  };
  return {out.detach(), grad_of(leaves.hidden_TH), grad_of(leaves.weights_TK), grad_of(leaves.gate_up_proj),
          grad_of(leaves.down_proj)};
}

at::Tensor loop_token(const Problem& problem, int64_t token) {
  const int64_t width = problem.sizes.width;
  at::Tensor sum = at::zeros_like(problem.hidden_TH[token]);
  for (int64_t k = 0; k < problem.sizes.top_k; ++k) {
    const int64_t expert = problem.ids_TK[token][k].item<int64_t>();
    const at::Tensor gate_up = problem.gate_up_proj[expert].mv(problem.hidden_TH[token]);
    const at::Tensor act = at::silu(gate_up.slice(0, 0, width)) * gate_up.slice(0, width, 2 * width);
    sum = sum + problem.weights_TK[token][k] * problem.down_proj[expert].mv(act);
  }
  return sum;
}

}  // namespace

Gradients loop_gradients(const Problem& problem) {
  const Problem leaves = with_leaves(problem);
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < problem.sizes.tokens; ++token) rows.push_back(loop_token(leaves, token));
  if (rows.empty()) return collect(leaves, at::zeros_like(leaves.hidden_TH));
  const at::Tensor out = at::stack(rows);
  out.backward(problem.grad_out_TH);
  return collect(leaves, out);
}

Gradients dispatcher_gradients(const Problem& problem, const Dispatcher& dispatcher, comm::Group& ep,
                               Routing* routing) {
  const Problem leaves = with_leaves(problem);
  Routing own;
  Routing& used = routing ? *routing : own;
  used.ids_TK = problem.ids_TK;
  used.decided = true;
  const at::Tensor out =
      dispatcher.forward(leaves.hidden_TH, leaves.weights_TK, used, {leaves.gate_up_proj, leaves.down_proj}, ep);
  out.backward(problem.grad_out_TH);
  return collect(leaves, out);
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (b.numel() == 0) return 0;
  const double largest = std::max(b.to(at::kDouble).abs().max().item<double>(), 1e-30);
  const double difference = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() / largest;
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

double frobenius_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_b = b.to(at::kDouble);
  const double difference = (a.to(at::kDouble) - wide_b).norm().item<double>() / wide_b.norm().item<double>();
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

void add_frobenius_differences(std::span<double, 5> sums, const Gradients& a, const Gradients& b) {
  sums[0] += frobenius_difference(a.out, b.out);
  sums[1] += frobenius_difference(a.hidden, b.hidden);
  sums[2] += frobenius_difference(a.weights, b.weights);
  sums[3] += frobenius_difference(a.gate_up_proj, b.gate_up_proj);
  sums[4] += frobenius_difference(a.down_proj, b.down_proj);
}

bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.is_contiguous() && b.is_contiguous() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// The loop itself, against finite differences of its output.
TEST(Problem, LoopGradientsAgreeWithFiniteDifferences) {
  const Problem problem = make_problem({3, 4, 3, 4, 2}, 5).to(at::kDouble);
  const Gradients grads = loop_gradients(problem);
  const auto objective = [](const Problem& p) { return (loop_gradients(p).out * p.grad_out_TH).sum().item<double>(); };
  const auto check = [&](at::Tensor Problem::* member, const at::Tensor& grad) {
    for (int64_t i = 0; i < grad.numel(); ++i) {
      double sides[2];
      for (int side = 0; side < 2; ++side) {
        Problem moved = problem;
        moved.*member = (problem.*member).clone();
        (moved.*member).view({-1})[i] += side == 0 ? -1e-5 : 1e-5;
        sides[side] = objective(moved);
      }
      ASSERT_NEAR((sides[1] - sides[0]) / 2e-5, grad.reshape({-1})[i].item<double>(), 1e-7);
    }
  };
  check(&Problem::hidden_TH, grads.hidden);
  check(&Problem::weights_TK, grads.weights);
  check(&Problem::gate_up_proj, grads.gate_up_proj);
  check(&Problem::down_proj, grads.down_proj);
}

}  // namespace expertmesh::moe
