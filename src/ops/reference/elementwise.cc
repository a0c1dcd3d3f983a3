// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>

#include <vector>

#include "ops/reference/reference.h"

namespace expertmesh::ops::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt((wide * wide).mean(-1, /*keepdim=*/true) + eps);
  return (wide * rstd * weight.to(at::kFloat)).to(x.scalar_type());
}

at::Tensor rope(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                const at::Tensor& sin_PR) {
  const int64_t half = cos_PR.size(1), head_dim = x_TND.size(2);
  const at::Tensor cos = cos_PR.index_select(0, positions_T).unsqueeze(1);
  const at::Tensor sin = sin_PR.index_select(0, positions_T).unsqueeze(1);
  const at::Tensor x = x_TND.to(at::kFloat);
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  const std::vector<at::Tensor> parts = {a * cos - b * sin, b * cos + a * sin,
                                         x.narrow(2, 2 * half, head_dim - 2 * half)};
  return at::cat(parts, 2).to(x_TND.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  const at::Tensor gate = gate_TI.to(at::kFloat);
  return (gate * at::sigmoid(gate) * up_TI.to(at::kFloat)).to(gate_TI.scalar_type());
}

}  // namespace expertmesh::ops::reference
