// SPDX-License-Identifier: Apache-2.0
// C += A B on small fp32 tiles that are in the cache: the inner product of the attention kernels.
// A is read one element at a time through two strides, so it may be transposed; B and C have contiguous columns.
// Rows come in fours and columns in sixteens: callers pad their tiles with zeros. No torch.
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

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// 4 rows by V * 16 columns of C in registers.
template <int V>
EXPERTMESH_INLINE void multiply_strip(Tile a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                                      int64_t depth) {
  Vec sums[kTileRows][V];
#pragma GCC unroll 4
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = load(c + r * c_stride + v * kLanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const float* row = b + k * b_stride;
    const float* column = a.data + k * a.col_stride;
    Vec right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = load(row + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) {
      const float left = column[r * a.row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[r][v] += right[v] * left;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

template <int V>
EXPERTMESH_INLINE void multiply_columns(Tile a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                                        int64_t rows, int64_t depth) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const Tile strip = {a.data + r * a.row_stride, a.row_stride, a.col_stride};
    multiply_strip<V>(strip, b, b_stride, c + r * c_stride, c_stride, depth);
  }
}

// C [rows, cols] += A [rows, depth] B [depth, cols]; rows a multiple of 4, cols of 16.
EXPERTMESH_INLINE void multiply_add(Tile a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t rows,
                                    int64_t cols, int64_t depth) {
  int64_t col = 0;
  for (; col + 4 * kLanes <= cols; col += 4 * kLanes) {
    multiply_columns<4>(a, b + col, b_stride, c + col, c_stride, rows, depth);
  }
  switch ((cols - col) / kLanes) {
    case 3:
      multiply_columns<3>(a, b + col, b_stride, c + col, c_stride, rows, depth);
      break;
    case 2:
      multiply_columns<2>(a, b + col, b_stride, c + col, c_stride, rows, depth);
      break;
    case 1:
      multiply_columns<1>(a, b + col, b_stride, c + col, c_stride, rows, depth);
      break;
    default:
      break;
  }
}

}  // namespace expertmesh::ops::cpu
