// SPDX-License-Identifier: Apache-2.0
// silu(gate) * up, forward and backward, single pass, fp32 inside. Rows have `cols` contiguous elements; gate and up
// may be the halves of one matrix (in_stride = 2 * cols) or two (in_stride = cols). No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct SwigluShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t in_stride = 0;   // of gate, up and their gradients
  int64_t out_stride = 0;  // of out and its gradient
};

void swiglu_forward(const float* gate, const float* up, float* out, SwigluShape shape);
void swiglu_forward(const Bf16* gate, const Bf16* up, Bf16* out, SwigluShape shape);

void swiglu_backward(const float* grad_out, const float* gate, const float* up, float* grad_gate, float* grad_up,
                     SwigluShape shape);
void swiglu_backward(const Bf16* grad_out, const Bf16* gate, const Bf16* up, Bf16* grad_gate, Bf16* grad_up,
                     SwigluShape shape);

}  // namespace expertmesh::ops::cpu
