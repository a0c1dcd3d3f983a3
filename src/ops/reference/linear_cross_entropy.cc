// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/reference/reference.h"
#include "ops/target_rows.h"

namespace expertmesh::ops::reference {
namespace {

constexpr int64_t kChunkElements = int64_t{16} << 20;  // logits of a chunk of rows: 64 MiB in fp32

at::Tensor column(const std::vector<int64_t>& values, int64_t begin, int64_t size) {
  return at::from_blob(const_cast<int64_t*>(values.data()) + begin, {size, 1}, at::kLong);
}

}  // namespace

CrossEntropyResult linear_cross_entropy(const CrossEntropyInput& input) {
  const at::NoGradGuard no_graph;
  const at::Tensor weight = input.weight_VH.detach();
  const TargetRows rows(input.targets_T, weight.size(0));
  std::vector<double> factors = rows.factors(input.weights_T, input.scale);
  const at::Tensor x = rows.gather(input.hidden_TH.detach());
  at::Tensor grad_x = input.needs_grad_hidden ? at::zeros(x.sizes(), x.options()) : at::Tensor();
  at::Tensor grad_weight = input.grad_weight_VH;
  if (grad_weight.defined() && input.overwrites_grad_weight) grad_weight.zero_();
  const int64_t chunk = std::max<int64_t>(1, kChunkElements / weight.size(0));

  CrossEntropyResult result;
  for (int64_t begin = 0; begin < rows.size(); begin += chunk) {
    const int64_t size = std::min(chunk, rows.size() - begin);
    const at::Tensor x_chunk = x.narrow(0, begin, size);
    const at::Tensor logprobs = at::log_softmax(at::mm(x_chunk, weight.t()).to(at::kFloat), -1);
    const at::Tensor targets = column(rows.targets(), begin, size);
    const at::Tensor factor = at::from_blob(factors.data() + begin, {size, 1}, at::kDouble);
    result.loss -= (logprobs.gather(1, targets).to(at::kDouble) * factor).sum().item<double>();
    at::Tensor grad = at::exp(logprobs);
    grad.scatter_add_(1, targets, at::zeros({size, 1}, grad.options()) - 1.0);
    grad = (grad * factor.to(at::kFloat)).to(weight.scalar_type());
    if (grad_x.defined()) grad_x.narrow(0, begin, size).copy_(at::mm(grad, weight));
    if (grad_weight.defined()) grad_weight.add_(at::mm(grad.t(), x_chunk));
  }
  if (grad_x.defined()) result.grad_hidden_TH = rows.scatter(grad_x);
  return result;
}

at::Tensor linear_logprobs(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T) {
  const at::NoGradGuard no_graph;
  const TargetRows rows(targets_T, weight_VH.size(0));
  const at::Tensor x = rows.gather(hidden_TH.detach());
  at::Tensor out = at::zeros({rows.size(), 1}, at::TensorOptions().dtype(at::kFloat));
  const int64_t chunk = std::max<int64_t>(1, kChunkElements / weight_VH.size(0));
  for (int64_t begin = 0; begin < rows.size(); begin += chunk) {
    const int64_t size = std::min(chunk, rows.size() - begin);
    const at::Tensor logits = at::mm(x.narrow(0, begin, size), weight_VH.detach().t());
    out.narrow(0, begin, size)
        .copy_(at::log_softmax(logits.to(at::kFloat), -1).gather(1, column(rows.targets(), begin, size)));
  }
  return rows.scatter(out).view({-1});
}

}  // namespace expertmesh::ops::reference
