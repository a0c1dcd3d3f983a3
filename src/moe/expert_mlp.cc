// SPDX-License-Identifier: Apache-2.0
#include "moe/expert_mlp.h"

#include <ATen/ops/from_blob.h>

#include <atomic>

#include "base/trace.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

std::atomic<const ExpertMlp*> g_forced{nullptr};

// Each weight meets each row of its expert once in a product; both are read or written once at least.
base::Work work_of(const ExpertRows& rows, const ExpertWeights& weights, int products) {
  const double weight_bytes = static_cast<double>(weights.gate_up_proj.nbytes() + weights.down_proj.nbytes());
  const double expert_numel = 3.0 * static_cast<double>(weights.down_proj.size(1) * weights.down_proj.size(2));
  return {.flops = 2.0 * static_cast<double>(rows.num_rows()) * expert_numel * products,
          .bytes = weight_bytes * products};
}

}  // namespace

at::Tensor rows_anywhere(const void* base, int64_t width, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(base), {1, width}, {1, 1}, dtype);
}

void ExpertMlp::forward_into(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights,
                             const ExpertForward& result) const {
  const base::Span span("experts");
  span.does([&] { return work_of(rows, weights, 1); });
  run_forward(x, rows, weights, result);
}

void ExpertMlp::backward_into(const ExpertBackwardInput& in, const ExpertGrads& grads) const {
  const base::Span span("experts backward");
  span.does([&] { return work_of(in.rows, in.weights, (in.does_rows() ? 1 : 0) + (in.does_weights() ? 1 : 0)); });
  run_backward(in, grads);
}

ExpertForward ExpertMlp::forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights) const {
  ExpertForward result = new_expert_forward(x, rows, weights);
  forward_into(x, rows, weights, result);
  return result;
}

ExpertGrads ExpertMlp::backward(const ExpertBackwardInput& in) const {
  ExpertGrads grads = new_expert_grads(in);
  backward_into(in, grads);
  return grads;
}

void TEST_use_expert_mlp(const ExpertMlp* mlp) { g_forced.store(mlp); }

const ExpertMlp& choose_expert_mlp(at::ScalarType dtype) {
  if (const ExpertMlp* forced = g_forced.load(std::memory_order_relaxed)) return *forced;
  for (const ExpertMlp* mlp : {&packed_expert_mlp(), &native_expert_mlp()}) {
    if (mlp->supports(dtype)) return *mlp;
  }
  return reference_expert_mlp();
}

ExpertForward new_expert_forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights) {
  return {ops::new_tensor({rows.num_rows(), x.size(1)}, x.scalar_type()),
          ops::new_tensor({rows.num_rows(), weights.gate_up_proj.size(1)}, x.scalar_type())};
}

ExpertGrads new_expert_grads(const ExpertBackwardInput& in) {
  const at::ScalarType dtype = in.x.scalar_type();
  ExpertGrads grads;
  if (in.needs.x) grads.x_RH = ops::new_tensor({in.rows.num_rows(), in.x.size(1)}, dtype);
  if (in.needs.weights) grads.weights_R = ops::new_tensor({in.rows.num_rows()}, at::kFloat);
  if (in.needs.gate_up_proj) grads.gate_up_proj = ops::new_tensor(in.weights.gate_up_proj.sizes(), dtype);
  if (in.needs.down_proj) grads.down_proj = ops::new_tensor(in.weights.down_proj.sizes(), dtype);
  return grads;
}

ExpertActGrads new_act_grads(const ExpertWeights& weights, int64_t rows, const ExpertGradNeeds& needs) {
  const at::ScalarType dtype = weights.down_proj.scalar_type();
  const int64_t width = weights.down_proj.size(2);
  ExpertActGrads acts;
  if (needs.down_proj) acts.weighted_act_RI = ops::new_tensor({rows, width}, dtype);
  if (needs.gate_up_proj || needs.x) acts.grad_gate_up_R2I = ops::new_tensor({rows, 2 * width}, dtype);
  return acts;
}

}  // namespace expertmesh::moe
