// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rms_norm.h"

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

cpu::RmsNormShape shape_of(int64_t begin, int64_t end, int64_t cols, double weight_offset) {
  return {.rows = end - begin, .cols = cols, .weight_offset = static_cast<float>(weight_offset)};
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight, double eps,
                            double weight_offset) {
    const at::Tensor x = x_in.contiguous();
    const int64_t cols = x.size(-1);
    const int64_t rows = x.numel() / std::max<int64_t>(cols, 1);
    EXPERTMESH_CHECK(weight.is_contiguous() && weight.numel() == cols && weight.scalar_type() == x.scalar_type(),
                     "rms_norm of {} columns with a weight of {}", cols, weight.numel());
    const at::Tensor y = new_like(x);
    const at::Tensor rstd = new_tensor({rows}, x.options().dtype(at::kFloat));
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end) {
        cpu::rms_norm_forward(raw<T>(x) + begin * cols, raw<T>(weight), mutable_raw<T>(y) + begin * cols,
                              mutable_raw<float>(rstd) + begin, shape_of(begin, end, cols, weight_offset),
                              static_cast<float>(eps));
      });
    });
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["weight_offset"] = weight_offset;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("rms_norm backward");
    span.does([&] { return base::Work{.flops = 0, .bytes = 3 * bytes_of(grad_outputs[0])}; });
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const double weight_offset = ctx->saved_data["weight_offset"].toDouble();
    const at::Tensor grad_y = grad_outputs[0].contiguous();
    const int64_t cols = x.size(-1);
    const int64_t rows = rstd.numel();
    const at::Tensor grad_x = new_like(x);
    const ThreadSums sums(cols);
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end) {
        cpu::rms_norm_backward(raw<T>(grad_y) + begin * cols, raw<T>(x) + begin * cols, raw<T>(weight),
                               raw<float>(rstd) + begin, mutable_raw<T>(grad_x) + begin * cols, sums.of_this_thread(),
                               shape_of(begin, end, cols, weight_offset));
      });
    });
    const at::Tensor grad_weight = ctx->needs_input_grad(1) ? sums.total(weight.scalar_type()) : at::Tensor();
    return {grad_x, grad_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset) {
  return RmsNorm::apply(x, weight, eps, weight_offset);
}

}  // namespace expertmesh::ops::native
