// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/swiglu.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;  // elements a thread at least

// The operands are contiguous: one long row.
cpu::SwigluShape one_row(int64_t size) { return {.rows = 1, .cols = size, .in_stride = size, .out_stride = size}; }

class Swiglu : public torch::autograd::Function<Swiglu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_in, const at::Tensor& up_in) {
    const at::Tensor gate = gate_in.contiguous(), up = up_in.contiguous();
    EXPERTMESH_CHECK(gate.sizes() == up.sizes(), "swiglu of {} and {} elements", gate.numel(), up.numel());
    const at::Tensor out = new_like(gate);
    with_element_type(gate.scalar_type(), [&]<typename T>(T) {
      at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
        cpu::swiglu_forward(raw<T>(gate) + begin, raw<T>(up) + begin, mutable_raw<T>(out) + begin,
                            one_row(end - begin));
      });
    });
    ctx->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("swiglu backward");
    span.does([&] { return base::Work{.flops = 0, .bytes = 3 * bytes_of(grad_outputs[0])}; });
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor grad_out = grad_outputs[0].contiguous();
    const at::Tensor grad_gate = new_like(gate), grad_up = new_like(up);
    with_element_type(gate.scalar_type(), [&]<typename T>(T) {
      at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
        cpu::swiglu_backward(raw<T>(grad_out) + begin, raw<T>(gate) + begin, raw<T>(up) + begin,
                             mutable_raw<T>(grad_gate) + begin, mutable_raw<T>(grad_up) + begin, one_row(end - begin));
      });
    });
    return {grad_gate, grad_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI) { return Swiglu::apply(gate_TI, up_TI); }

}  // namespace expertmesh::ops::native
