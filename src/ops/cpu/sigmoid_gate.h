// SPDX-License-Identifier: Apache-2.0
// x * sigmoid(gate) over rows, single pass, fp32 inside; the backward computes the sigmoid again. Rows may be split
// over threads. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Rows of x and of the gate may be apart; those of everything else are contiguous.
template <typename T>
struct SigmoidGateTensors {
  const T* x = nullptr;
  const T* gate = nullptr;
  T* y = nullptr;  // of the forward; the others are the backward's
  const T* grad_y = nullptr;
  T* grad_x = nullptr;
  T* grad_gate = nullptr;
};

struct SigmoidGateShape {
  int64_t begin = 0, end = 0;  // rows
  int64_t cols = 0;
  int64_t x_stride = 0, gate_stride = 0;
  bool is_gate_of_row = false;  // one gate a row, not one an element
};

void sigmoid_gate_forward(const SigmoidGateTensors<float>& tensors, SigmoidGateShape shape);
void sigmoid_gate_forward(const SigmoidGateTensors<Bf16>& tensors, SigmoidGateShape shape);
void sigmoid_gate_backward(const SigmoidGateTensors<float>& tensors, SigmoidGateShape shape);
void sigmoid_gate_backward(const SigmoidGateTensors<Bf16>& tensors, SigmoidGateShape shape);

}  // namespace expertmesh::ops::cpu
