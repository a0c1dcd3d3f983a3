// SPDX-License-Identifier: Apache-2.0
// Random MoE layers for tests, and the naive loop over tokens and experts that everything is compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "moe/dispatcher.h"
#include "moe/sample_layer.h"  // ids_tensor

namespace expertmesh::moe {

struct ProblemSizes {
  int64_t tokens = 0, hidden = 16, width = 12, experts = 8, top_k = 2;
};

struct Problem {
  ProblemSizes sizes;
  at::Tensor hidden_TH, weights_TK, ids_TK, gate_up_proj, down_proj, grad_out_TH;

  Problem to(at::ScalarType dtype) const;  // routing weights stay fp32, or fp64 where dtype is
  Problem tokens(int64_t begin, int64_t end) const;
  Problem experts(int64_t begin, int64_t end) const;  // ids stay global
};

// Distinct random experts a token, fp32.
Problem make_problem(const ProblemSizes& sizes, int64_t seed);

struct Gradients {
  at::Tensor out, hidden, weights, gate_up_proj, down_proj;
};

// The layer as a loop, with gradients from autograd.
Gradients loop_gradients(const Problem& problem);

// The dispatcher on one rank; `routing` is kept where given.
Gradients dispatcher_gradients(const Problem& problem, const Dispatcher& dispatcher, comm::Group& ep,
                               Routing* routing = nullptr);

// max |a - b| / max |b|, in fp64; 0 for empty tensors, infinite for NaN.
double max_difference(const at::Tensor& a, const at::Tensor& b);
// |a - b| / |b|, Frobenius norms.
double frobenius_difference(const at::Tensor& a, const at::Tensor& b);
// Adds that of each of the five.
void add_frobenius_differences(std::span<double, 5> sums, const Gradients& a, const Gradients& b);
bool bitwise_equal(const at::Tensor& a, const at::Tensor& b);

}  // namespace expertmesh::moe
