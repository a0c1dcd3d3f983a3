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

void forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result) {
  const int64_t width = weights.down_proj.size(2);
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
}

// One expert of the backward. What is not needed stays undefined; the slices of the results are written in full.
struct BackwardStep {
  const ExpertBackwardInput& in;
  at::Tensor x, grad_y, gate_up_proj, down_proj;  // inputs, rows in expert order
  at::Tensor weighted_act, grad_gate_up;          // from one half to the other
  at::Tensor grad_x, grad_routing;                // made here

  void run_rows(const at::Tensor& gate_up, const at::Tensor& routing) {
    const int64_t width = down_proj.size(1);
    const at::Tensor gate = gate_up.slice(1, 0, width).to(at::kFloat);
    const at::Tensor up = gate_up.slice(1, width, 2 * width).to(at::kFloat);
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor silu = gate * sigmoid;
    const at::Tensor act = silu * up;
    const at::Tensor scale = routing.unsqueeze(1);
    const at::Tensor unweighted = at::mm(grad_y, down_proj).to(at::kFloat);
    if (in.needs.weights) grad_routing = (unweighted * act.to(x.scalar_type()).to(at::kFloat)).sum(1);
    if (weighted_act.defined()) weighted_act.copy_(act * scale);
    if (!grad_gate_up.defined()) return;
    const at::Tensor grad_act = unweighted * scale;
    grad_gate_up.slice(1, 0, width).copy_(grad_act * up * (sigmoid + silu * (1 - sigmoid)));
    grad_gate_up.slice(1, width, 2 * width).copy_(grad_act * silu);
    if (in.needs.x) grad_x = at::mm(grad_gate_up, gate_up_proj);
  }

  void run_weights(at::Tensor grad_gate_up_proj, at::Tensor grad_down_proj) const {
    if (in.needs.down_proj) at::mm_out(grad_down_proj, grad_y.t(), weighted_act);
    if (in.needs.gate_up_proj) at::mm_out(grad_gate_up_proj, grad_gate_up.t(), x);
  }
};

// The rows [begin, end) of what the halves hand on.
at::Tensor acts_of(const at::Tensor& all, const ExpertRows& rows, int64_t begin, int64_t end) {
  if (!all.defined()) return {};
  if (rows.act_rows.empty()) return all.slice(0, begin, end);
  return all.index_select(0, index_view(rows.act_rows, begin, end));
}

void backward(const ExpertBackwardInput& in, const ExpertGrads& grads) {
  const ExpertRows& rows = in.rows;
  for (int64_t expert = 0; expert < rows.num_experts(); ++expert) {
    const int64_t begin = rows.offsets[static_cast<size_t>(expert)];
    const int64_t end = rows.offsets[static_cast<size_t>(expert) + 1];
    const at::Tensor grad_gate_up_proj = in.needs.gate_up_proj ? grads.gate_up_proj[expert] : at::Tensor();
    const at::Tensor grad_down_proj = in.needs.down_proj ? grads.down_proj[expert] : at::Tensor();
    if (begin == end) {
      if (in.does_weights() && in.needs.gate_up_proj) grad_gate_up_proj.zero_();
      if (in.does_weights() && in.needs.down_proj) grad_down_proj.zero_();
      continue;
    }
    const auto list = [&](const int64_t* first) {
      return index_view({first, static_cast<size_t>(end - begin)}, 0, end - begin);
    };
    const ExpertActGrads acts = in.acts != nullptr
                                    ? ExpertActGrads{acts_of(in.acts->weighted_act_RI, rows, begin, end),
                                                     acts_of(in.acts->grad_gate_up_R2I, rows, begin, end)}
                                    : new_act_grads(in.weights, end - begin, in.needs);
    BackwardStep step{in,
                      in.x.index_select(0, index_view(rows.in_rows, begin, end)),
                      in.grad_y.index_select(0, list(rows.grads_from(begin))),
                      in.weights.gate_up_proj[expert],
                      in.weights.down_proj[expert],
                      acts.weighted_act_RI,
                      acts.grad_gate_up_R2I,
                      {},
                      {}};
    if (in.does_rows()) {
      const at::Tensor weight_rows = list(rows.weights_from(begin));
      step.run_rows(in.gate_up_R2I.slice(0, begin, end), in.routing_weights_R.index_select(0, weight_rows));
      if (in.needs.x) grads.x_RH.index_copy_(0, index_view(rows.out_rows, begin, end), step.grad_x);
      if (in.needs.weights) grads.weights_R.index_copy_(0, weight_rows, step.grad_routing);
    }
    if (in.does_weights()) step.run_weights(grad_gate_up_proj, grad_down_proj);
  }
}

constexpr ExpertMlp kReference{"mm", [](at::ScalarType) { return true; }, forward, backward};

}  // namespace

const ExpertMlp& reference_expert_mlp() { return kReference; }

}  // namespace expertmesh::moe
