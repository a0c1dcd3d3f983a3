// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gated_rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"
#include "ops/thread_sums.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;  // elements a thread at least

template <typename T>
cpu::GatedNormTensors<T> inputs_of(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                                   const at::Tensor& rstd) {
  return {.x = raw<T>(x), .gate = raw<T>(gate), .weight = raw<T>(weight), .rstd = mutable_raw<float>(rstd)};
}

class GatedRmsNorm : public torch::autograd::Function<GatedRmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& gate_in,
                            const at::Tensor& weight, double eps) {
    const at::Tensor x = x_in.contiguous(), gate = gate_in.contiguous();
    const int64_t cols = x.size(-1), rows = x.numel() / std::max<int64_t>(cols, 1);
    EXPERTMESH_CHECK(weight.is_contiguous() && weight.numel() == cols && weight.scalar_type() == x.scalar_type(),
                     "gated_rms_norm of {} columns with a weight of {}", cols, weight.numel());
    EXPERTMESH_CHECK(gate.sizes() == x.sizes() && gate.scalar_type() == x.scalar_type(), "{} elements, {} in the gate",
                     x.numel(), gate.numel());
    const at::Tensor y = new_like(x), rstd = new_tensor({rows}, at::kFloat);
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      auto tensors = inputs_of<T>(x, gate, weight, rstd);
      tensors.y = mutable_raw<T>(y);
      at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end) {
        cpu::gated_rms_norm_forward(tensors, {begin, end, cols, static_cast<float>(eps)});
      });
    });
    ctx->save_for_backward({x, gate, weight, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("gated_rms_norm backward");
    span.does([&] { return base::Work{.flops = 0, .bytes = 3 * bytes_of(grad_outputs[0])}; });
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[2];
    const at::Tensor grad_y = grad_outputs[0].contiguous(), grad_x = new_like(x), grad_gate = new_like(x);
    const int64_t cols = x.size(-1);
    const ThreadSums sums(cols);
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      auto tensors = inputs_of<T>(x, saved[1], weight, saved[3]);
      tensors.grad_y = raw<T>(grad_y);
      tensors.grad_x = mutable_raw<T>(grad_x);
      tensors.grad_gate = mutable_raw<T>(grad_gate);
      at::parallel_for(0, saved[3].numel(), std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end) {
        auto part = tensors;
        part.grad_weight = sums.of_this_thread();
        cpu::gated_rms_norm_backward(part, {begin, end, cols});
      });
    });
    const at::Tensor grad_weight = ctx->needs_input_grad(2) ? sums.total(weight.scalar_type()) : at::Tensor();
    return {grad_x, grad_gate, grad_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps) {
  return GatedRmsNorm::apply(x, gate, weight, eps);
}

}  // namespace expertmesh::ops::native
