// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rms_norm.h"

#include <cmath>

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void forward_rows(const T* x, const T* weight, T* y, float* rstd, RmsNormShape shape, float eps) {
  const auto [rows, cols, offset] = shape;
  for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    Vec squares = splat(0.0F);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const Vec v = load(x + i, lanes_at(i, cols));
      squares += v * v;
    }
    const float scale = 1.0F / std::sqrt(sum(squares) / static_cast<float>(cols) + eps);
    rstd[row] = scale;
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      store(y + i, load(x + i, n) * scale * (load(weight + i, n) + offset), n);
    }
  }
}

// With n = x * rstd and h = g * (offset + w): dx = rstd * (h - n * mean(h * n)), dw += g * n.
template <typename T>
EXPERTMESH_INLINE void backward_rows(const T* grad_y, const T* x, const T* weight, const float* rstd, T* grad_x,
                                     ColumnSums grad_weight, RmsNormShape shape) {
  const auto [rows, cols, offset] = shape;
  for (int64_t row = 0; row < rows; ++row, x += cols, grad_y += cols, grad_x += cols) {
    const float scale = rstd[row];
    Vec dots = splat(0.0F);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      const Vec g = load(grad_y + i, n);
      const Vec normed = load(x + i, n) * scale;
      dots += g * (load(weight + i, n) + offset) * normed;
      store(grad_weight.block + i, load(grad_weight.block + i, n) + g * normed, n);
    }
    const float mean = sum(dots) / static_cast<float>(cols);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      const Vec h = load(grad_y + i, n) * (load(weight + i, n) + offset);
      store(grad_x + i, (h - load(x + i, n) * scale * mean) * scale, n);
    }
    if ((row + 1) % kSumRows == 0 || row + 1 == rows) end_block(grad_weight, cols);
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, rms_norm_forward,
                      (const float* x, const float* weight, float* y, float* rstd, RmsNormShape shape, float eps),
                      forward_rows, (x, weight, y, rstd, shape, eps))
EXPERTMESH_CPU_KERNEL(void, rms_norm_forward,
                      (const Bf16* x, const Bf16* weight, Bf16* y, float* rstd, RmsNormShape shape, float eps),
                      forward_rows, (x, weight, y, rstd, shape, eps))
EXPERTMESH_CPU_KERNEL(void, rms_norm_backward,
                      (const float* grad_y, const float* x, const float* weight, const float* rstd, float* grad_x,
                       ColumnSums grad_weight, RmsNormShape shape),
                      backward_rows, (grad_y, x, weight, rstd, grad_x, grad_weight, shape))
EXPERTMESH_CPU_KERNEL(void, rms_norm_backward,
                      (const Bf16* grad_y, const Bf16* x, const Bf16* weight, const float* rstd, Bf16* grad_x,
                       ColumnSums grad_weight, RmsNormShape shape),
                      backward_rows, (grad_y, x, weight, rstd, grad_x, grad_weight, shape))

}  // namespace expertmesh::ops::cpu
