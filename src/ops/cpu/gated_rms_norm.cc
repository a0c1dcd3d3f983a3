// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gated_rms_norm.h"

#include <cmath>

#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void forward_rows(const GatedNormTensors<T>& tensors, GatedNormShape shape) {
  const int64_t cols = shape.cols;
  for (int64_t row = shape.begin; row < shape.end; ++row) {
    const T *x = tensors.x + row * cols, *gate = tensors.gate + row * cols;
    Vec squares = splat(0.0F);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const Vec v = load(x + i, lanes_at(i, cols));
      squares += v * v;
    }
    const float scale = 1.0F / std::sqrt(sum(squares) / static_cast<float>(cols) + shape.eps);
    tensors.rstd[row] = scale;
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      const Vec g = load(gate + i, n);
      store(tensors.y + row * cols + i, load(x + i, n) * scale * load(tensors.weight + i, n) * (g * sigmoid(g)), n);
    }
  }
}

// With n = x * rstd, s = silu(gate), h = g * w * s: dx = rstd * (h - n * mean(h * n)), dw += g * n * s,
// dgate = g * n * w * silu'(gate).
template <typename T>
EXPERTMESH_INLINE void backward_rows(const GatedNormTensors<T>& tensors, GatedNormShape shape) {
  const int64_t cols = shape.cols;
  for (int64_t row = shape.begin; row < shape.end; ++row) {
    const int64_t at = row * cols;
    const float scale = tensors.rstd[row];
    Vec dots = splat(0.0F);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      const Vec g = load(tensors.grad_y + at + i, n), z = load(tensors.gate + at + i, n), sig = sigmoid(z);
      const Vec weight = load(tensors.weight + i, n), normed = load(tensors.x + at + i, n) * scale, silu = z * sig;
      const Vec along = g * normed;
      dots += along * weight * silu;
      store(tensors.grad_gate + at + i, along * weight * (sig + silu * (1.0F - sig)), n);
      store(tensors.grad_weight.block + i, load(tensors.grad_weight.block + i, n) + along * silu, n);
    }
    const float mean = sum(dots) / static_cast<float>(cols);
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t n = lanes_at(i, cols);
      const Vec z = load(tensors.gate + at + i, n);
      const Vec h = load(tensors.grad_y + at + i, n) * load(tensors.weight + i, n) * (z * sigmoid(z));
      store(tensors.grad_x + at + i, (h - load(tensors.x + at + i, n) * scale * mean) * scale, n);
    }
    const int64_t next = row + 1;
    if ((next - shape.begin) % kSumRows == 0 || next == shape.end) end_block(tensors.grad_weight, cols);
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, gated_rms_norm_forward, (const GatedNormTensors<float>& tensors, GatedNormShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, gated_rms_norm_forward, (const GatedNormTensors<Bf16>& tensors, GatedNormShape shape),
                      forward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, gated_rms_norm_backward, (const GatedNormTensors<float>& tensors, GatedNormShape shape),
                      backward_rows, (tensors, shape))
EXPERTMESH_CPU_KERNEL(void, gated_rms_norm_backward, (const GatedNormTensors<Bf16>& tensors, GatedNormShape shape),
                      backward_rows, (tensors, shape))

}  // namespace expertmesh::ops::cpu
