// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rope.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 16384;  // elements a thread at least

at::Tensor rotate(const at::Tensor& x_in, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                  bool backward) {
  const bool heads_in_place = x_in.stride(2) == 1 && x_in.stride(1) == x_in.size(2);
  const at::Tensor x = heads_in_place ? x_in : x_in.contiguous();
  const at::Tensor y = new_like(x);
  const int64_t width = x.size(1) * x.size(2);
  cpu::RopeShape shape{.heads = x.size(1),
                       .head_dim = x.size(2),
                       .half = cos.size(1),
                       .token_stride = x.stride(0),
                       .backward = backward};
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    at::parallel_for(0, x.size(0), std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
      cpu::RopeShape part = shape;
      part.tokens = end - begin;
      cpu::rope(raw<T>(x) + begin * shape.token_stride, mutable_raw<T>(y) + begin * width,
                raw<int64_t>(positions) + begin, raw<float>(cos), raw<float>(sin), part);
    });
  });
  return y;
}

class Rope : public torch::autograd::Function<Rope> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin) {
    EXPERTMESH_CHECK(2 * cos.size(1) <= x.size(2) && cos.is_contiguous() && sin.is_contiguous() &&
                         positions.is_contiguous() && positions.numel() == x.size(0),
                     "rope of {} columns by tables of {}", x.size(2), cos.size(1));
    ctx->save_for_backward({positions, cos, sin});
    return rotate(x, positions, cos, sin, /*backward=*/false);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("rope backward");
    span.does([&] { return base::Work{.flops = 0, .bytes = 3 * bytes_of(grad_outputs[0])}; });
    const variable_list saved = ctx->get_saved_variables();
    return {rotate(grad_outputs[0], saved[0], saved[1], saved[2], /*backward=*/true), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor rope(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                const at::Tensor& sin_PR) {
  return Rope::apply(x_TND, positions_T, cos_PR, sin_PR);
}

}  // namespace expertmesh::ops::native
