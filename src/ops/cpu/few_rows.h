// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a matrix as weights lie, [columns, depth]: the matrix is read once, in the order it lies
// in, and nothing is packed. What decoding is made of: its speed is that of the memory. fp32 inside. An element of the
// result depends on its row and column alone, not on how many there are. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/indexed_rows.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Up to here these products are the faster ones; past it, those that keep a block of the matrix in the cache.
constexpr int64_t kFewRows = 8;

// y[r, c] = sum over k of x[r, k] w[c, k]
template <typename T>
struct FewRows {
  const float* x = nullptr;  // as widen_row (split_rows.h) leaves rows of T
  int64_t x_stride = 0;
  int64_t rows = 0;
  const T* w = nullptr;
  int64_t w_stride = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

void few_row_product(const FewRows<float>& product, Isa isa = processor_isa());
void few_row_product(const FewRows<Bf16>& product, Isa isa = processor_isa());

// The same for rows in the dtype of the weights: y[r, c] for r < rows, c < columns.
template <typename T>
struct FewRowLinear {
  IndexedRows<const T> x;
  IndexedRows<T> y;
  int64_t rows = 0;
  const T* w = nullptr;  // [columns, depth]
  int64_t w_stride = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

// Floats of scratch memory that it needs.
int64_t few_row_scratch(int64_t rows, int64_t depth);
void few_row_linear(const FewRowLinear<float>& linear, float* scratch);
void few_row_linear(const FewRowLinear<Bf16>& linear, float* scratch);

}  // namespace expertmesh::ops::cpu
