// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of heads, fp32 inside: element i and i + half of each head turn by the angle of the token's
// position. Elements past 2 * half pass through. The backward is the rotation the other way. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct RopeShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t half = 0;          // columns of the tables
  int64_t token_stride = 0;  // elements from one token of x to the next; its heads are contiguous
  bool backward = false;
};

// x has heads * head_dim contiguous elements a token; y is contiguous. cos and sin are [positions, half].
void rope(const float* x, float* y, const int64_t* positions, const float* cos, const float* sin, RopeShape shape);
void rope(const Bf16* x, Bf16* y, const int64_t* positions, const float* cos, const float* sin, RopeShape shape);

}  // namespace expertmesh::ops::cpu
