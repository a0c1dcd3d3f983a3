// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/product.h"

namespace expertmesh::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Where the library has no products of its own for the dtype.
class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return product(as_rows(x), weight.t()).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor grad = as_rows(grad_outputs[0]);
    variable_list grads(2);
    if (ctx->needs_input_grad(0)) grads[0] = product(grad, weight).view(x.sizes());
    if (ctx->needs_input_grad(1)) grads[1] = product(grad.t(), as_rows(x));
    return grads;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (library_multiplies(x.scalar_type())) return at::linear(x, weight, bias);
  const at::Tensor y = Linear::apply(x, weight);
  return bias.defined() ? y + bias : y;
}

}  // namespace expertmesh::ops
