// SPDX-License-Identifier: Apache-2.0
// Rows between tensors and fp32 tiles (tile_product.h). No torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

EXPERTMESH_INLINE void zero_rows(float* to, int64_t rows, int64_t stride) {
  std::memset(to, 0, static_cast<size_t>(rows * stride) * sizeof(float));
}

// [rows, cols] as fp32 with `stride` between rows; columns up to sixteen and rows up to padded_rows are zero.
template <typename T>
EXPERTMESH_INLINE void load_tile(const T* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                                 int64_t stride, int64_t padded_rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; i += kLanes) {
      store(to + r * stride + i, load(from + r * from_stride + i, lanes_at(i, cols)));
    }
  }
  if (rows < padded_rows) zero_rows(to + rows * stride, padded_rows - rows, stride);
}

template <typename T>
EXPERTMESH_INLINE void store_tile(const float* from, int64_t stride, int64_t rows, int64_t cols, T* to,
                                  int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; i += kLanes) {
      store(to + r * to_stride + i, load(from + r * stride + i), lanes_at(i, cols));
    }
  }
}

EXPERTMESH_INLINE void scale_row(float* row, int64_t cols, float factor) {
  for (int64_t i = 0; i < cols; i += kLanes) store(row + i, load(row + i) * factor);
}

}  // namespace expertmesh::ops::cpu
