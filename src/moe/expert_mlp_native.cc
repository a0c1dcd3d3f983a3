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

// Bytes of `count` elements of `tensor`.
int64_t bytes_of(const at::Tensor& tensor, int64_t count) {
  return count * static_cast<int64_t>(tensor.element_size());
}

// Rows of `source` side by side.
at::Tensor gather_task(const at::Tensor& source, const int64_t* index, int64_t rows) {
  at::Tensor out = ops::new_tensor({rows, source.size(1)}, source.scalar_type());
  ops::cpu::gather_rows(
      {static_cast<const std::byte*>(source.const_data_ptr()), bytes_of(source, source.stride(0)), index},
      bytes_of(source, source.size(1)), out.mutable_data_ptr(), 0, rows);
  return out;
}

void scatter_task(const at::Tensor& source, const ExpertRows& rows, const Task& task, const at::Tensor& out) {
  ops::cpu::scatter_rows(source.const_data_ptr(), bytes_of(source, source.size(1)),
                         {static_cast<std::byte*>(out.mutable_data_ptr()), bytes_of(out, out.stride(0)),
                          rows.out_rows.data() + task.begin},
                         0, task.rows);
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

void forward(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights, const ExpertForward& result) {
  const auto run_expert = [&](const Task& task) {
    if (task.rows == 0) return;
    at::Tensor gate_up = result.gate_up_R2I.narrow(0, task.begin, task.rows);
    ops::product_into(gate_up, gather_task(x, rows.in_rows.data() + task.begin, task.rows),
                      weights.gate_up_proj[task.expert].t());
    scatter_task(ops::product(swiglu(gate_up), weights.down_proj[task.expert].t()), rows, task, result.y_RH);
  };
  for_each_expert(rows, [&] { return run_expert; });
}

struct Backward : ExpertBackwardInput {
  const ExpertGrads& grads;

  // The pass between the products; fills what is there of acts.
  void act(const Task& task, const at::Tensor& grad_act, const ExpertActGrads& to) const {
    ops::with_element_type(x.scalar_type(), [&](auto element) {
      using T = decltype(element);
      const auto pointer = [](const at::Tensor& tensor) -> T* {
        return tensor.defined() ? ops::mutable_raw<T>(tensor) : nullptr;
      };
      ops::cpu::expert_act_backward(ops::cpu::ExpertActBackward<T>{
          .gate_up = ops::raw<T>(gate_up_R2I) + task.begin * gate_up_R2I.size(1),
          .grad_act = ops::raw<T>(grad_act),
          .weights = ops::raw<float>(routing_weights_R),
          .weight_rows = rows.weights_from(task.begin),
          .weighted_act = pointer(to.weighted_act_RI),
          .grad_gate_up = pointer(to.grad_gate_up_R2I),
          .grad_weights = needs.weights ? ops::mutable_raw<float>(grads.weights_R) : nullptr,
          .rows = task.rows,
          .width = grad_act.size(1),
      });
    });
  }

  void zero_expert(int64_t expert) const {
    if (!does_weights()) return;
    if (needs.gate_up_proj) grads.gate_up_proj[expert].zero_();
    if (needs.down_proj) grads.down_proj[expert].zero_();
  }

  // The expert's rows of what the halves hand on.
  at::Tensor acts_of(const at::Tensor& all, const Task& task) const {
    if (!all.defined()) return {};
    if (rows.act_rows.empty()) return all.narrow(0, task.begin, task.rows);
    return gather_task(all, rows.act_rows.data() + task.begin, task.rows);
  }

  void run_expert(const Task& task) const {
    if (task.rows == 0) return zero_expert(task.expert);
    const at::Tensor grad = gather_task(grad_y, rows.grads_from(task.begin), task.rows);
    const ExpertActGrads own =
        acts != nullptr ? ExpertActGrads{acts_of(acts->weighted_act_RI, task), acts_of(acts->grad_gate_up_R2I, task)}
                        : new_act_grads(weights, task.rows, needs);
    if (does_rows()) act(task, ops::product(grad, weights.down_proj[task.expert]), own);
    if (does_weights()) weight_gradients(task, grad, own);
    if (does_rows() && needs.x) {
      scatter_task(ops::product(own.grad_gate_up_R2I, weights.gate_up_proj[task.expert]), rows, task, grads.x_RH);
    }
  }

  void weight_gradients(const Task& task, const at::Tensor& grad, const ExpertActGrads& own) const {
    if (needs.down_proj) {
      at::Tensor slice = grads.down_proj[task.expert];
      ops::product_into(slice, grad.t(), own.weighted_act_RI);
    }
    if (needs.gate_up_proj) {
      at::Tensor slice = grads.gate_up_proj[task.expert];
      ops::product_into(slice, own.grad_gate_up_R2I.t(), gather_task(x, rows.in_rows.data() + task.begin, task.rows));
    }
  }
};

void backward(const ExpertBackwardInput& in, const ExpertGrads& grads) {
  const Backward run{in, grads};
  for_each_expert(in.rows, [&] { return [&](const Task& task) { run.run_expert(task); }; });
}

constexpr ExpertMlp kNative{
    "native", [](at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; }, forward, backward};

}  // namespace

const ExpertMlp& native_expert_mlp() { return kNative; }

}  // namespace expertmesh::moe
