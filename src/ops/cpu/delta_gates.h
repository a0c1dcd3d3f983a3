// SPDX-License-Identifier: Apache-2.0
// The gates of a gated delta net over rows of `cols` contiguous elements, single pass, fp32 throughout:
// g = -e^A_log softplus(a + dt_bias), beta = sigmoid(b). The backward computes them again. Rows may be split over
// threads. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

template <typename T>
struct DeltaGatesTensors {
  const T* a = nullptr;
  const T* b = nullptr;
  const float* A_log = nullptr;    // [cols]
  const float* dt_bias = nullptr;  // [cols]
  float* g = nullptr;              // of the forward, and beta; the others are the backward's
  float* beta = nullptr;
  const float* grad_g = nullptr;
  const float* grad_beta = nullptr;
  T* grad_a = nullptr;
  T* grad_b = nullptr;
  ColumnSums grad_A_log = {};  // [cols], added to: sums of their own for each thread
  ColumnSums grad_dt_bias = {};
};

struct DeltaGatesShape {
  int64_t begin = 0, end = 0;  // rows
  int64_t cols = 0;
};

void delta_gates_forward(const DeltaGatesTensors<float>& tensors, DeltaGatesShape shape);
void delta_gates_forward(const DeltaGatesTensors<Bf16>& tensors, DeltaGatesShape shape);
void delta_gates_backward(const DeltaGatesTensors<float>& tensors, DeltaGatesShape shape);
void delta_gates_backward(const DeltaGatesTensors<Bf16>& tensors, DeltaGatesShape shape);

}  // namespace expertmesh::ops::cpu
