// SPDX-License-Identifier: Apache-2.0
// Sums of columns over any number of rows: fp32 within a block of rows, fp64 from block to block. The error is then
// that of a few rows however many there are, and hardly depends on how rows are spread over threads and batches. No
// torch.
#pragma once

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kSumRows = 32;  // of a block

struct ColumnSums {
  float* block = nullptr;   // [cols]: of the rows since the last full block; zero before the first and after the last
  double* total = nullptr;  // [cols]: of the blocks before it
};

// Adds the block to the total and makes it zero again.
EXPERTMESH_INLINE void end_block(const ColumnSums& sums, int64_t cols) {
  using Wide = double __attribute__((vector_size(64)));
  using Half = float __attribute__((vector_size(32)));
  constexpr int64_t kHalf = kLanes / 2;
  int64_t i = 0;
  for (; i + kHalf <= cols; i += kHalf) {
    Half block;
    Wide total;
    std::memcpy(&block, sums.block + i, sizeof block);
    std::memcpy(&total, sums.total + i, sizeof total);
    total += __builtin_convertvector(block, Wide);
    std::memcpy(sums.total + i, &total, sizeof total);
  }
  for (; i < cols; ++i) sums.total[i] += sums.block[i];
  std::memset(sums.block, 0, static_cast<size_t>(cols) * sizeof(float));
}

}  // namespace expertmesh::ops::cpu
