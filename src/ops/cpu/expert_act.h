// SPDX-License-Identifier: Apache-2.0
// The backward of SwiGLU between an expert's two products, with the routing weight: one pass over the rows of one
// expert, fp32 inside. The forward is swiglu.h. No torch. Threads: any.
// Shapes: R rows, I width. Rows are contiguous.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// With act = silu(gate) * up, s the row's routing weight and d the gradient of the unweighted activation:
//   weighted_act = s * act, grad_weight = <d, act>, and the gradient of gate and up from s * d.
// act enters grad_weight rounded to T, as the forward's second product saw it. Each of the three outputs may be
// nullptr.
template <typename T>
struct ExpertActBackward {
  const T* gate_up = nullptr;      // [R, 2I], gate first
  const T* grad_act = nullptr;     // [R, I]
  const float* weights = nullptr;  // of row r: weights[weight_rows[r]]
  const int64_t* weight_rows = nullptr;
  T* weighted_act = nullptr;      // [R, I]
  T* grad_gate_up = nullptr;      // [R, 2I]
  float* grad_weights = nullptr;  // of row r: grad_weights[weight_rows[r]]
  int64_t rows = 0;
  int64_t width = 0;
};

// silu(gate) * up where tokens are the columns, as the packed operand of the next product (expert_kernels.h).
struct SwigluColumns {
  const Bf16* gate = nullptr;  // `rows` rows of `columns` elements
  const Bf16* up = nullptr;
  int64_t stride = 0;  // of both
  int64_t rows = 0;
  int64_t columns = 0;
  uint32_t* act = nullptr;  // the first row's pair in the first block of columns
  int64_t act_block = 0;    // from one block to the next
};

void swiglu_columns(const SwigluColumns& args);

void expert_act_backward(const ExpertActBackward<float>& args);
void expert_act_backward(const ExpertActBackward<Bf16>& args);

}  // namespace expertmesh::ops::cpu
