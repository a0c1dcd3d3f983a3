// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rope.h"

namespace expertmesh::ops::cpu {
namespace {

template <typename T>
EXPERTMESH_INLINE void rotate_head(const T* x, T* y, const float* cos, const float* sin, float sign, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = lanes_at(i, half);
    const Vec a = load(x + i, n), b = load(x + half + i, n);
    const Vec c = load(cos + i, n), s = load(sin + i, n) * sign;
    store(y + i, a * c - b * s, n);
    store(y + half + i, b * c + a * s, n);
  }
}

template <typename T>
EXPERTMESH_INLINE void rope_tokens(const T* x, T* y, const int64_t* positions, const float* cos, const float* sin,
                                   RopeShape shape) {
  const float sign = shape.backward ? -1.0F : 1.0F;
  const int64_t rotated = 2 * shape.half;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    const float* c = cos + positions[token] * shape.half;
    const float* s = sin + positions[token] * shape.half;
    const T* from = x + token * shape.token_stride;
    for (int64_t head = 0; head < shape.heads; ++head, from += shape.head_dim, y += shape.head_dim) {
      rotate_head(from, y, c, s, sign, shape.half);
      for (int64_t i = rotated; i < shape.head_dim; ++i) y[i] = from[i];
    }
  }
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, rope,
                      (const float* x, float* y, const int64_t* positions, const float* cos, const float* sin,
                       RopeShape shape),
                      rope_tokens, (x, y, positions, cos, sin, shape))
EXPERTMESH_CPU_KERNEL(void, rope,
                      (const Bf16* x, Bf16* y, const int64_t* positions, const float* cos, const float* sin,
                       RopeShape shape),
                      rope_tokens, (x, y, positions, cos, sin, shape))

}  // namespace expertmesh::ops::cpu
