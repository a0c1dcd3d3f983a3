// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sum.h>
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
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    ctx->save_for_backward({x, weight});
    at::Tensor y = product(as_rows(x), weight.t());
    if (bias.defined()) y += bias;
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor grad = as_rows(grad_outputs[0]);
    variable_list grads(3);
    if (ctx->needs_input_grad(0)) grads[0] = product(grad, weight).view(x.sizes());
    if (ctx->needs_input_grad(1)) grads[1] = product(grad.t(), as_rows(x));
    if (ctx->needs_input_grad(2)) grads[2] = at::sum(grad, {0}, /*keepdim=*/false, at::kFloat).to(grad.scalar_type());
    return grads;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return library_multiplies(x.scalar_type()) ? at::linear(x, weight, bias) : Linear::apply(x, weight, bias);
}

}  // namespace expertmesh::ops
