// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include <vector>

#include "ops/reference/reference.h"
#include "ops/reference/wide.h"

namespace expertmesh::ops::reference {

namespace {

at::Tensor normed(const at::Tensor& x_in, double eps) {
  const at::Tensor x = wide(x_in);
  return x * at::rsqrt((x * x).mean(-1, /*keepdim=*/true) + eps);
}

at::Tensor times_sigmoid(const at::Tensor& x) { return x * at::sigmoid(x); }

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset) {
  return (normed(x, eps) * (wide(weight) + weight_offset)).to(x.scalar_type());
}

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  return (normed(x, eps) * wide(weight) * times_sigmoid(wide(gate))).to(x.scalar_type());
}

at::Tensor rope(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                const at::Tensor& sin_PR) {
  const int64_t half = cos_PR.size(1), head_dim = x_TND.size(2);
  const at::Tensor cos = cos_PR.index_select(0, positions_T).unsqueeze(1);
  const at::Tensor sin = sin_PR.index_select(0, positions_T).unsqueeze(1);
  const at::Tensor x = wide(x_TND);
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  const std::vector<at::Tensor> parts = {a * cos - b * sin, b * cos + a * sin,
                                         x.narrow(2, 2 * half, head_dim - 2 * half)};
  return at::cat(parts, 2).to(x_TND.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  return (times_sigmoid(wide(gate_TI)) * wide(up_TI)).to(gate_TI.scalar_type());
}

at::Tensor sigmoid_gate(const at::Tensor& x_TI, const at::Tensor& gate_TI) {
  return (wide(x_TI) * at::sigmoid(wide(gate_TI))).to(x_TI.scalar_type());
}

DeltaGates delta_gates(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                       const at::Tensor& dt_bias_V) {
  constexpr double kThreshold = 40.0;  // softplus(x) is x above it: e^-40 is below the digits of fp64 too
  const at::Tensor step_TV = wide(a_TV) + wide(dt_bias_V);
  return {-at::exp(wide(A_log_V)) * at::softplus(step_TV, 1.0, kThreshold), at::sigmoid(wide(b_TV))};
}

}  // namespace expertmesh::ops::reference
