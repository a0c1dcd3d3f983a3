// SPDX-License-Identifier: Apache-2.0
// RMS norm over rows of `cols` contiguous elements, single pass, fp32 inside. Rows may be split over threads. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/column_sums.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct RmsNormShape {
  int64_t rows = 0;
  int64_t cols = 0;
  float weight_offset = 0.0F;  // added to the weight, in fp32
};

// y = x * rstd * (weight_offset + weight); rstd[row] = 1 / sqrt(mean(x^2) + eps) is kept for the backward.
void rms_norm_forward(const float* x, const float* weight, float* y, float* rstd, RmsNormShape shape, float eps);
void rms_norm_forward(const Bf16* x, const Bf16* weight, Bf16* y, float* rstd, RmsNormShape shape, float eps);

// grad_x of the rows; grad_weight[cols] is added to: sums of their own for each thread.
void rms_norm_backward(const float* grad_y, const float* x, const float* weight, const float* rstd, float* grad_x,
                       ColumnSums grad_weight, RmsNormShape shape);
void rms_norm_backward(const Bf16* grad_y, const Bf16* x, const Bf16* weight, const float* rstd, Bf16* grad_x,
                       ColumnSums grad_weight, RmsNormShape shape);

}  // namespace expertmesh::ops::cpu
