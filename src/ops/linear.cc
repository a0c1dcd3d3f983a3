// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/few_rows.h"
#include "ops/new_tensor.h"
#include "ops/product.h"
#include "ops/raw.h"

namespace expertmesh::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Where the library's own linear will not do: on product().
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

bool wants_graph(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

thread_local bool t_is_decoding = false;

bool suits_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  const at::ScalarType dtype = x.scalar_type();
  return t_is_decoding && x.dim() > 0 && x.size(-1) > 0 && x.numel() <= cpu::kFewRows * x.size(-1) &&
         weight.stride(1) == 1 && weight.scalar_type() == dtype && (dtype == at::kFloat || dtype == at::kBFloat16) &&
         !wants_graph(x) && !wants_graph(weight);
}

// The threads share the weight's rows.
at::Tensor multiply_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kGrain = 65536;  // elements of the weight a thread at least
  const at::Tensor rows = as_rows(x).contiguous();
  const int64_t depth = weight.size(1), columns = weight.size(0);
  EXPERTMESH_CHECK(rows.size(1) == depth, "rows of {}, a weight of [{}, {}]", rows.size(1), columns, depth);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = columns;
  const at::Tensor y = new_tensor(shape, x.scalar_type());
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    at::parallel_for(0, columns, std::max<int64_t>(1, kGrain / depth), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = new_tensor({cpu::few_row_scratch(rows.size(0), depth)}, at::kFloat);
      cpu::few_row_linear(cpu::FewRowLinear<T>{.x = {raw<T>(rows), depth},
                                               .y = {mutable_raw<T>(y) + begin, columns},
                                               .rows = rows.size(0),
                                               .w = raw<T>(weight) + begin * weight.stride(0),
                                               .w_stride = weight.stride(0),
                                               .columns = end - begin,
                                               .depth = depth},
                          mutable_raw<float>(scratch));
    });
  });
  return y;
}

bool library_has_linear(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat && x.size(-1) > 0 && x.numel() < kLeastRows * x.size(-1)) return false;
  return library_multiplies(x.scalar_type());
}

}  // namespace

DecodingScope::DecodingScope() : before_(t_is_decoding) { t_is_decoding = true; }
DecodingScope::~DecodingScope() { t_is_decoding = before_; }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const bool is_few = suits_few_rows(x, weight);
  if (!is_few && library_has_linear(x)) return at::linear(x, weight, bias);
  const at::Tensor y = is_few ? multiply_few_rows(x, weight) : Linear::apply(x, weight);
  return bias.defined() ? y + bias : y;
}

}  // namespace expertmesh::ops
