// SPDX-License-Identifier: Apache-2.0
// The products are the library's, everything between them is one native pass over rows that still sit in the cache.
#include <ATen/TensorOperators.h>

#include "moe/expert_mlp.h"
#include "moe/expert_tasks.h"
#include "ops/cpu/expert_act.h"
#include "ops/cpu/expert_rows.h"
#include "ops/cpu/swiglu.h"
#include "ops/new_tensor.h"
#include "ops/product.h"
#include "ops/raw.h"

namespace expertmesh::moe {
namespace {

using Task = ExpertTask;

at::Tensor gather_task(const at::Tensor& source, const ExpertRows& rows, const Task& task) {
  at::Tensor out = ops::new_tensor({task.rows, source.size(1)}, source.scalar_type());
  ops::cpu::gather_rows(source.const_data_ptr(), rows.in_rows.data() + task.begin,
                        source.size(1) * static_cast<int64_t>(source.element_size()), out.mutable_data_ptr(), 0,
                        task.rows);
  return out;
}

void scatter_task(const at::Tensor& source, const ExpertRows& rows, const Task& task, const at::Tensor& out) {
  ops::cpu::scatter_rows(source.const_data_ptr(), rows.out_rows.data() + task.begin,
                         source.size(1) * static_cast<int64_t>(source.element_size()), out.mutable_data_ptr(), 0,
                         task.rows);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor act = ops::new_tensor({gate_up.size(0), width}, gate_up.scalar_type());
  ops::with_element_type(gate_up.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* gate = ops::raw<T>(gate_up);
    ops::cpu::swiglu_forward(gate, gate + width, ops::mutable_raw<T>(act), {gate_up.size(0), width, 2 * width, width});
  });
  return act;
}

ExpertForward forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights) {
  ExpertForward result = new_expert_forward(x, rows, weights);
  const auto run_expert = [&](const Task& task) {
    if (task.rows == 0) return;
    at::Tensor gate_up = result.gate_up_R2I.narrow(0, task.begin, task.rows);
    ops::product_into(gate_up, gather_task(x, rows, task), weights.gate_up_proj[task.expert].t());
    scatter_task(ops::product(swiglu(gate_up), weights.down_proj[task.expert].t()), rows, task, result.y_RH);
  };
  for_each_expert(rows, [&] { return run_expert; });
  return result;
}

struct Backward : ExpertBackwardInput {
  ExpertGrads grads;

  // The pass between the products; fills what is needed of weighted_act and grad_gate_up.
  void act(const Task& task, const at::Tensor& grad_act, const at::Tensor& weighted_act,
           const at::Tensor& grad_gate_up) const {
    ops::with_element_type(x.scalar_type(), [&](auto element) {
      using T = decltype(element);
      ops::cpu::expert_act_backward(ops::cpu::ExpertActBackward<T>{
          .gate_up = ops::raw<T>(gate_up_R2I) + task.begin * gate_up_R2I.size(1),
          .grad_act = ops::raw<T>(grad_act),
          .weights = ops::raw<float>(routing_weights_R),
          .weight_rows = rows.out_rows.data() + task.begin,
          .weighted_act = weighted_act.defined() ? ops::mutable_raw<T>(weighted_act) : nullptr,
          .grad_gate_up = grad_gate_up.defined() ? ops::mutable_raw<T>(grad_gate_up) : nullptr,
          .grad_weights = needs.weights ? ops::mutable_raw<float>(grads.weights_R) : nullptr,
          .rows = task.rows,
          .width = grad_act.size(1),
      });
    });
  }

  void zero_expert(int64_t expert) const {
    if (needs.gate_up_proj) grads.gate_up_proj[expert].zero_();
    if (needs.down_proj) grads.down_proj[expert].zero_();
  }

  void run_expert(const Task& task) const {
    if (task.rows == 0) return zero_expert(task.expert);
    const at::ScalarType dtype = x.scalar_type();
    const int64_t width = weights.down_proj.size(2);
    const at::Tensor grad = gather_task(grad_y, rows, task);
    const at::Tensor weighted_act = needs.down_proj ? ops::new_tensor({task.rows, width}, dtype) : at::Tensor();
    const at::Tensor grad_gate_up =
        needs.gate_up_proj || needs.x ? ops::new_tensor({task.rows, 2 * width}, dtype) : at::Tensor();
    act(task, ops::product(grad, weights.down_proj[task.expert]), weighted_act, grad_gate_up);
    if (needs.down_proj) {
      at::Tensor slice = grads.down_proj[task.expert];
      ops::product_into(slice, grad.t(), weighted_act);
    }
    if (needs.gate_up_proj) {
      at::Tensor slice = grads.gate_up_proj[task.expert];
      ops::product_into(slice, grad_gate_up.t(), gather_task(x, rows, task));
    }
    if (needs.x) scatter_task(ops::product(grad_gate_up, weights.gate_up_proj[task.expert]), rows, task, grads.x_RH);
  }
};

ExpertGrads backward(const ExpertBackwardInput& in) {
  Backward run{in, new_expert_grads(in)};
  for_each_expert(in.rows, [&] { return [&](const Task& task) { run.run_expert(task); }; });
  return std::move(run.grads);
}

constexpr ExpertMlp kNative{
    "native", [](at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; }, forward, backward};

}  // namespace

const ExpertMlp& native_expert_mlp() { return kNative; }

}  // namespace expertmesh::moe
