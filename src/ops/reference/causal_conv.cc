// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "ops/reference/reference.h"
#include "ops/reference/wide.h"

namespace expertmesh::ops::reference {

CausalConvResult causal_conv1d_silu(const CausalConvInput& input) {
  check_input(input);
  const at::Tensor &x = input.x_TC, weight = wide(input.weight_CW);
  const int64_t channels = weight.size(0), taps = weight.size(1);
  const auto documents = static_cast<int64_t>(input.cu_seqlens.size()) - 1;
  const at::Tensor before = input.initial_state_BCW.defined() ? input.initial_state_BCW
                                                              : at::zeros({documents, channels, taps - 1}, x.options());
  std::vector<at::Tensor> outputs = {wide(x.narrow(0, 0, 0))}, states;
  for (int64_t b = 0; b < documents; ++b) {
    const int64_t begin = input.cu_seqlens[b], length = input.cu_seqlens[b + 1] - begin;
    const std::vector<at::Tensor> parts = {before[b].transpose(0, 1), x.narrow(0, begin, length)};
    const at::Tensor inputs = at::cat(parts, 0);  // [W - 1 + L, C]
    at::Tensor sum = at::zeros({length, channels}, weight.options());
    for (int64_t tap = 0; tap < taps; ++tap) sum = sum + wide(inputs.narrow(0, tap, length)) * weight.select(1, tap);
    outputs.push_back(sum * at::sigmoid(sum));
    states.push_back(inputs.narrow(0, length, taps - 1).transpose(0, 1));
  }
  CausalConvResult result{at::cat(outputs, 0).to(x.scalar_type()), {}};
  if (input.needs_final_state) result.final_state_BCW = states.empty() ? before : at::stack(states);
  return result;
}

}  // namespace expertmesh::ops::reference
