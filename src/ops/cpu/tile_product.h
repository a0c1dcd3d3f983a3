// SPDX-License-Identifier: Apache-2.0
// C += A B on small fp32 tiles that are in the cache: the inner product of the attention and gated delta kernels.
// A is read one element at a time through two strides, so it may be transposed; B and C have contiguous columns.
// Rows come in fours and columns in sixteens: callers pad their tiles with zeros. No torch.
// A row stride that is a multiple of 256 bytes keeps a column of B in few sets of the first cache: kTilePadding floats
// between rows avoid that.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct Tile {
  const float* data;
  int64_t row_stride;
  int64_t col_stride;
};

constexpr int64_t kTileRows = 4;
constexpr int64_t kTilePadding = kLanes;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// C [rows, cols] += A [rows, depth] B [depth, cols]; rows a multiple of 4, cols of 16.
void multiply_add(Tile a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t rows, int64_t cols,
                  int64_t depth);

}  // namespace expertmesh::ops::cpu
