// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "moe/expert_mlp.h"
#include "ops/new_tensor.h"

namespace expertmesh::moe {
namespace {

// A view of indices [begin, end) as a tensor, for index_select.
at::Tensor index_view(std::span<const int64_t> index, int64_t begin, int64_t end) {
  return at::from_blob(const_cast<int64_t*>(index.data()) + begin, {end - begin}, at::kLong);
}

ExpertForward forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights) {
  const int64_t hidden = x.size(1);
  const int64_t width = weights.down_proj.size(2);
  ExpertForward result;
  result.y_RH = ops::new_tensor({rows.num_rows(), hidden}, x.scalar_type());
  result.gate_up_R2I = ops::new_tensor({rows.num_rows(), 2 * width}, x.scalar_type());
  for (int64_t expert = 0; expert < rows.num_experts(); ++expert) {
    const int64_t begin = rows.offsets[expert];
    const int64_t end = rows.offsets[expert + 1];
    if (begin == end) continue;
    at::Tensor gate_up = result.gate_up_R2I.slice(0, begin, end);
    at::mm_out(gate_up, x.index_select(0, index_view(rows.in_rows, begin, end)), weights.gate_up_proj[expert].t());
    const at::Tensor gate = gate_up.slice(1, 0, width).to(at::kFloat);
    const at::Tensor up = gate_up.slice(1, width, 2 * width).to(at::kFloat);
    const at::Tensor act = (at::silu(gate) * up).to(x.scalar_type());
    result.y_RH.index_copy_(0, index_view(rows.out_rows, begin, end), at::mm(act, weights.down_proj[expert].t()));
  }
  return result;
}

// One expert of the backward; the slices of the results are written in full.
struct BackwardStep {
  const ExpertGradNeeds& needs;
  at::Tensor x, grad_y, gate_up, routing, gate_up_proj, down_proj;  // inputs, in expert order
  at::Tensor grad_gate_up_proj, grad_down_proj;                     // slices of the results
  at::Tensor grad_x, grad_routing;                                  // made here

  void run() {
    const int64_t width = down_proj.size(1);
    const at::Tensor gate = gate_up.slice(1, 0, width).to(at::kFloat);
    const at::Tensor up = gate_up.slice(1, width, 2 * width).to(at::kFloat);
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor silu = gate * sigmoid;
    const at::Tensor act = silu * up;
    const at::Tensor scale = routing.unsqueeze(1);
    const at::Tensor unweighted = at::mm(grad_y, down_proj).to(at::kFloat);
    if (needs.weights) grad_routing = (unweighted * act.to(x.scalar_type()).to(at::kFloat)).sum(1);
    if (needs.down_proj) at::mm_out(grad_down_proj, grad_y.t(), (act * scale).to(x.scalar_type()));
    if (!needs.gate_up_proj && !needs.x) return;
    const at::Tensor grad_act = unweighted * scale;
    at::Tensor grad_gate_up = ops::new_tensor(gate_up.sizes(), x.scalar_type());
    grad_gate_up.slice(1, 0, width).copy_(grad_act * up * (sigmoid + silu * (1 - sigmoid)));
    grad_gate_up.slice(1, width, 2 * width).copy_(grad_act * silu);
    if (needs.gate_up_proj) at::mm_out(grad_gate_up_proj, grad_gate_up.t(), x);
    if (needs.x) grad_x = at::mm(grad_gate_up, gate_up_proj);
  }
};

ExpertGrads backward(const ExpertBackwardInput& in) {
  const auto& [grad_y, x, gate_up_R2I, routing_weights_R, rows, weights, needs] = in;
  ExpertGrads grads = new_expert_grads(in);
  for (int64_t expert = 0; expert < rows.num_experts(); ++expert) {
    const int64_t begin = rows.offsets[expert];
    const int64_t end = rows.offsets[expert + 1];
    const at::Tensor grad_gate_up_proj = needs.gate_up_proj ? grads.gate_up_proj[expert] : at::Tensor();
    const at::Tensor grad_down_proj = needs.down_proj ? grads.down_proj[expert] : at::Tensor();
    if (begin == end) {
      if (needs.gate_up_proj) grad_gate_up_proj.zero_();
      if (needs.down_proj) grad_down_proj.zero_();
      continue;
    }
    const at::Tensor in_rows = index_view(rows.in_rows, begin, end);
    const at::Tensor out_rows = index_view(rows.out_rows, begin, end);
    BackwardStep step{needs,
                      x.index_select(0, in_rows),
                      grad_y.index_select(0, in_rows),
                      gate_up_R2I.slice(0, begin, end),
                      routing_weights_R.index_select(0, out_rows),
                      weights.gate_up_proj[expert],
                      weights.down_proj[expert],
                      grad_gate_up_proj,
                      grad_down_proj,
                      {},
                      {}};
    step.run();
    if (needs.x) grads.x_RH.index_copy_(0, out_rows, step.grad_x);
    if (needs.weights) grads.weights_R.index_copy_(0, out_rows, step.grad_routing);
  }
  return grads;
}

constexpr ExpertMlp kReference{"mm", [](at::ScalarType) { return true; }, forward, backward};

}  // namespace

const ExpertMlp& reference_expert_mlp() { return kReference; }

}  // namespace expertmesh::moe
