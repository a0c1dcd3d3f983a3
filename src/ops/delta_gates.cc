// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_gates.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"
#include "ops/thread_sums.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 4096;  // elements a thread at least

void check_operands(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                    const at::Tensor& dt_bias_V) {
  EXPERTMESH_CHECK(a_TV.dim() == 2 && b_TV.sizes() == a_TV.sizes() && b_TV.scalar_type() == a_TV.scalar_type(),
                   "delta_gates of {} and {} elements", a_TV.numel(), b_TV.numel());
  for (const at::Tensor* weight : {&A_log_V, &dt_bias_V}) {
    EXPERTMESH_CHECK(weight->numel() == a_TV.size(1) && weight->scalar_type() == at::kFloat,
                     "delta_gates of {} heads with {} {} elements", a_TV.size(1), weight->numel(),
                     c10::toString(weight->scalar_type()));
  }
}

template <typename T>
cpu::DeltaGatesTensors<T> inputs_of(const variable_list& inputs) {
  cpu::DeltaGatesTensors<T> tensors;
  tensors.a = raw<T>(inputs[0]);
  tensors.b = raw<T>(inputs[1]);
  tensors.A_log = raw<float>(inputs[2]);
  tensors.dt_bias = raw<float>(inputs[3]);
  return tensors;
}

// body(shape) for the rows of each thread.
template <typename Body>
void for_rows(const at::Tensor& a_TV, const Body& body) {
  const int64_t cols = a_TV.size(1);
  at::parallel_for(0, a_TV.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)),
                   [&](int64_t begin, int64_t end) { body(cpu::DeltaGatesShape{begin, end, cols}); });
}

class DeltaGatesFunction : public torch::autograd::Function<DeltaGatesFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& a_TV, const at::Tensor& b_TV,
                               const at::Tensor& A_log_V, const at::Tensor& dt_bias_V) {
    check_operands(a_TV, b_TV, A_log_V, dt_bias_V);
    const variable_list inputs = {a_TV.contiguous(), b_TV.contiguous(), A_log_V.contiguous(), dt_bias_V.contiguous()};
    const at::Tensor g = new_tensor(a_TV.sizes(), at::kFloat), beta = new_tensor(a_TV.sizes(), at::kFloat);
    with_element_type(a_TV.scalar_type(), [&]<typename T>(T) {
      auto tensors = inputs_of<T>(inputs);
      tensors.g = mutable_raw<float>(g);
      tensors.beta = mutable_raw<float>(beta);
      for_rows(a_TV, [&](const cpu::DeltaGatesShape& part) { cpu::delta_gates_forward(tensors, part); });
    });
    ctx->save_for_backward(inputs);
    return {g, beta};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& a = saved[0];
    const at::Tensor grad_g = grad_outputs[0].contiguous(), grad_beta = grad_outputs[1].contiguous();
    const at::Tensor grad_a = new_like(a), grad_b = new_like(a);
    const ThreadSums of_A_log(a.size(1)), of_dt_bias(a.size(1));
    with_element_type(a.scalar_type(), [&]<typename T>(T) {
      auto tensors = inputs_of<T>(saved);
      tensors.grad_g = raw<float>(grad_g);
      tensors.grad_beta = raw<float>(grad_beta);
      tensors.grad_a = mutable_raw<T>(grad_a);
      tensors.grad_b = mutable_raw<T>(grad_b);
      for_rows(a, [&](const cpu::DeltaGatesShape& shape) {
        auto part = tensors;
        part.grad_A_log = of_A_log.of_this_thread();
        part.grad_dt_bias = of_dt_bias.of_this_thread();
        cpu::delta_gates_backward(part, shape);
      });
    });
    return {grad_a, grad_b, of_A_log.total(at::kFloat), of_dt_bias.total(at::kFloat)};
  }
};

}  // namespace

DeltaGates delta_gates(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                       const at::Tensor& dt_bias_V) {
  const variable_list gates = DeltaGatesFunction::apply(a_TV, b_TV, A_log_V, dt_bias_V);
  return {gates[0], gates[1]};
}

}  // namespace expertmesh::ops::native
