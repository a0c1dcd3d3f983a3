// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/swiglu.h"

#include "ops/cpu/sigmoid.h"

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void forward_rows(const T* gate, const T* up, T* out, SwigluShape shape) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t i = 0; i < shape.cols; i += kLanes) {
      const int64_t n = lanes_at(i, shape.cols);
      const Vec g = load(gate + i, n);
      store(out + i, g * sigmoid(g) * load(up + i, n), n);
    }
    gate += shape.in_stride;
    up += shape.in_stride;
    out += shape.out_stride;
  }
}

// d silu(g) / dg = s + g s (1 - s) with s = sigmoid(g).
template <typename T>
EXPERTMESH_INLINE void backward_rows(const T* grad_out, const T* gate, const T* up, T* grad_gate, T* grad_up,
                                     SwigluShape shape) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t i = 0; i < shape.cols; i += kLanes) {
      const int64_t n = lanes_at(i, shape.cols);
      const Vec g = load(gate + i, n), d = load(grad_out + i, n);
      const Vec s = sigmoid(g);
      const Vec silu = g * s;
      store(grad_gate + i, d * load(up + i, n) * (s + silu * (1.0F - s)), n);
      store(grad_up + i, d * silu, n);
    }
    grad_out += shape.out_stride;
    gate += shape.in_stride;
    up += shape.in_stride;
    grad_gate += shape.in_stride;
    grad_up += shape.in_stride;
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, swiglu_forward, (const float* gate, const float* up, float* out, SwigluShape shape),
                      forward_rows, (gate, up, out, shape))
EXPERTMESH_CPU_KERNEL(void, swiglu_forward, (const Bf16* gate, const Bf16* up, Bf16* out, SwigluShape shape),
                      forward_rows, (gate, up, out, shape))
EXPERTMESH_CPU_KERNEL(void, swiglu_backward,
                      (const float* grad_out, const float* gate, const float* up, float* grad_gate, float* grad_up,
                       SwigluShape shape),
                      backward_rows, (grad_out, gate, up, grad_gate, grad_up, shape))
EXPERTMESH_CPU_KERNEL(void, swiglu_backward,
                      (const Bf16* grad_out, const Bf16* gate, const Bf16* up, Bf16* grad_gate, Bf16* grad_up,
                       SwigluShape shape),
                      backward_rows, (grad_out, gate, up, grad_gate, grad_up, shape))

}  // namespace expertmesh::ops::cpu
