// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/causal_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"
#include "ops/units.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// body(begin, end, scratch) for every range of channels.
template <typename Body>
void for_channels(const cpu::CausalConvShape& shape, const Body& body) {
  const int64_t ranges = (shape.channels + cpu::kConvChannels - 1) / cpu::kConvChannels;
  for_each_unit(ranges, cpu::causal_conv_scratch(shape), [&](int64_t i, float* scratch) {
    const int64_t begin = i * cpu::kConvChannels;
    body(begin, std::min(begin + cpu::kConvChannels, shape.channels), scratch);
  });
}

template <typename T>
cpu::CausalConvTensors<T> inputs_of(const variable_list& saved) {
  return {
      .x = raw<T>(saved[0]), .weight = raw<float>(saved[1]), .before = saved[2].defined() ? raw<T>(saved[2]) : nullptr};
}

cpu::CausalConvShape shape_of(const variable_list& saved) {
  return {.channels = saved[1].size(1), .taps = saved[1].size(0), .x_stride = saved[0].stride(0)};
}

class CausalConv : public torch::autograd::Function<CausalConv> {
 public:
  // before_BWC: the state, channels last.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_CW,
                            const std::optional<at::Tensor>& before_BWC, const std::vector<int64_t>& cu_seqlens) {
    const variable_list saved = {x.stride(1) == 1 ? x : x.contiguous(), weight_CW.t().to(at::kFloat).contiguous(),
                                 before_BWC ? before_BWC->contiguous() : at::Tensor()};
    const at::Tensor out = new_tensor(x.sizes(), x.scalar_type());
    const cpu::CausalConvShape shape = shape_of(saved);
    with_element_type(x.scalar_type(), [&]<typename T>(T) {
      cpu::CausalConvTensors<T> tensors = inputs_of<T>(saved);
      tensors.out = mutable_raw<T>(out);
      for_channels(shape, [&](int64_t begin, int64_t end, float* /*scratch*/) {
        cpu::causal_conv_forward(tensors, shape, cu_seqlens, begin, end);
      });
    });
    ctx->save_for_backward(saved);
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("causal_conv1d_silu backward");
    span.does([&] { return base::Work{.flops = 0, .bytes = 3 * bytes_of(grad_outputs[0])}; });
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const at::Tensor grad_out = grad_outputs[0].contiguous();
    const at::Tensor grad_x = new_like(grad_out), grad_weight = new_tensor(saved[1].sizes(), at::kDouble);
    const at::Tensor grad_before = saved[2].defined() ? new_like(saved[2]) : at::Tensor();
    const cpu::CausalConvShape shape = shape_of(saved);
    with_element_type(grad_out.scalar_type(), [&]<typename T>(T) {
      cpu::CausalConvTensors<T> tensors = inputs_of<T>(saved);
      tensors.grad_out = raw<T>(grad_out);
      tensors.grad_x = mutable_raw<T>(grad_x);
      tensors.grad_weight = mutable_raw<double>(grad_weight);
      if (grad_before.defined()) tensors.grad_before = mutable_raw<T>(grad_before);
      for_channels(shape, [&](int64_t begin, int64_t end, float* scratch) {
        cpu::causal_conv_backward(tensors, shape, cu_seqlens, begin, end, scratch);
      });
    });
    return {grad_x, grad_weight.t().to(grad_out.scalar_type()).contiguous(), grad_before, at::Tensor()};
  }
};

// The last W - 1 inputs of each document, with those before it where it is shorter.
at::Tensor final_state(const CausalConvInput& input, const std::optional<at::Tensor>& before_BWC) {
  const int64_t kept = input.weight_CW.size(1) - 1, channels = input.x_TC.size(1);
  const auto documents = static_cast<int64_t>(input.cu_seqlens.size()) - 1;
  const at::Tensor before = before_BWC ? *before_BWC : at::zeros({documents, kept, channels}, input.x_TC.options());
  std::vector<at::Tensor> states = {};
  for (int64_t b = 0; b < documents; ++b) {
    const int64_t end = input.cu_seqlens[static_cast<size_t>(b) + 1];
    const int64_t own = std::min(kept, end - input.cu_seqlens[static_cast<size_t>(b)]);
    const std::vector<at::Tensor> parts = {before[b].narrow(0, own, kept - own), input.x_TC.narrow(0, end - own, own)};
    states.push_back(at::cat(parts, 0).t());
  }
  return states.empty() ? before.transpose(1, 2) : at::stack(states);
}

}  // namespace

CausalConvResult causal_conv1d_silu(const CausalConvInput& input) {
  check_input(input);
  std::optional<at::Tensor> before;
  if (input.initial_state_BCW.defined()) before = input.initial_state_BCW.transpose(1, 2);
  const std::vector<int64_t> cu_seqlens(input.cu_seqlens.begin(), input.cu_seqlens.end());
  const at::Tensor out = CausalConv::apply(input.x_TC, input.weight_CW, before, cu_seqlens);
  return {out, input.needs_final_state ? final_state(input, before) : at::Tensor()};
}

}  // namespace expertmesh::ops::native
