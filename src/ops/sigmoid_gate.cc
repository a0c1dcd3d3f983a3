// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/sigmoid_gate.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;  // elements a thread at least

// [rows, cols] where it lies, if the elements of a row are next to each other and rows equally far apart; else a copy.
at::Tensor as_rows(const at::Tensor& x) {
  const at::Tensor rows = x.reshape({c10::size_to_dim_(x.dim() - 1, x.sizes()), x.size(-1)});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

// x and gate as the kernel reads them.
struct Operands {
  at::Tensor x, gate;
  cpu::SigmoidGateShape shape;

  Operands(const at::Tensor& x_in, const at::Tensor& gate_in) : x(as_rows(x_in)), gate(as_rows(gate_in)) {
    shape.cols = x.size(1);
    shape.x_stride = x.stride(0);
    shape.gate_stride = gate.stride(0);
    shape.is_gate_of_row = gate.size(1) != x.size(1);
    EXPERTMESH_CHECK(gate.size(0) == x.size(0) && (!shape.is_gate_of_row || gate.size(1) == 1) &&
                         gate_in.dim() == x_in.dim() && gate.scalar_type() == x.scalar_type(),
                     "sigmoid_gate of [{}, {}] and a gate of [{}, {}]", x.size(0), x.size(1), gate.size(0),
                     gate.size(1));
  }

  template <typename Body>
  void for_rows(const Body& body) const {
    at::parallel_for(0, x.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.cols)),
                     [&](int64_t begin, int64_t end) {
                       auto part = shape;
                       part.begin = begin;
                       part.end = end;
                       body(part);
                     });
  }
};

class SigmoidGate : public torch::autograd::Function<SigmoidGate> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate) {
    const Operands operands(x, gate);
    const at::Tensor y = new_tensor(x.sizes(), x.scalar_type());
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      cpu::SigmoidGateTensors<T> tensors;
      tensors.x = raw<T>(operands.x);
      tensors.gate = raw<T>(operands.gate);
      tensors.y = mutable_raw<T>(y);
      operands.for_rows([&](const cpu::SigmoidGateShape& part) { cpu::sigmoid_gate_forward(tensors, part); });
    });
    ctx->save_for_backward({x, gate});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate = saved[1];
    const Operands operands(x, gate);
    const at::Tensor grad_y = grad_outputs[0].contiguous(), grad_x = new_tensor(x.sizes(), x.scalar_type()),
                     grad_gate = new_tensor(gate.sizes(), gate.scalar_type());
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      const cpu::SigmoidGateTensors<T> tensors{.x = raw<T>(operands.x),
                                               .gate = raw<T>(operands.gate),
                                               .y = nullptr,
                                               .grad_y = raw<T>(grad_y),
                                               .grad_x = mutable_raw<T>(grad_x),
                                               .grad_gate = mutable_raw<T>(grad_gate)};
      operands.for_rows([&](const cpu::SigmoidGateShape& part) { cpu::sigmoid_gate_backward(tensors, part); });
    });
    return {grad_x, grad_gate};
  }
};

}  // namespace

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate) { return SigmoidGate::apply(x, gate); }

}  // namespace expertmesh::ops::native
