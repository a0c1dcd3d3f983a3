// SPDX-License-Identifier: Apache-2.0
// RMS norm over rows of `cols` contiguous elements, times a weight and silu(gate), single pass, fp32 inside. Rows may
// be split over threads. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

template <typename T>
struct GatedNormTensors {
  const T* x = nullptr;
  const T* gate = nullptr;
  const T* weight = nullptr;  // [cols]
  T* y = nullptr;
  float* rstd = nullptr;  // [rows], written by the forward
  const T* grad_y = nullptr;
  T* grad_x = nullptr;
  T* grad_gate = nullptr;
  ColumnSums grad_weight = {};  // [cols], added to: sums of their own for each thread
};

struct GatedNormShape {
  int64_t begin = 0, end = 0;  // rows
  int64_t cols = 0;
  float eps = 0.0F;
};

void gated_rms_norm_forward(const GatedNormTensors<float>& tensors, GatedNormShape shape);
void gated_rms_norm_forward(const GatedNormTensors<Bf16>& tensors, GatedNormShape shape);
void gated_rms_norm_backward(const GatedNormTensors<float>& tensors, GatedNormShape shape);
void gated_rms_norm_backward(const GatedNormTensors<Bf16>& tensors, GatedNormShape shape);

}  // namespace expertmesh::ops::cpu
