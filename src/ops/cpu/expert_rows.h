// SPDX-License-Identifier: Apache-2.0
// Row movement around the experts: gather and scatter rows, and sum each token's K result rows in fp32. Plain pointers,
// no torch. Threads: any; callers split the ranges. Each output element is summed over k in order, so the result does
// not depend on how the ranges are split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/indexed_rows.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// out[i] = row i of source, for i in [begin, end), rows of row_bytes.
void gather_rows(IndexedRows<const std::byte> source, int64_t row_bytes, void* out, int64_t begin, int64_t end);

// row i of out = source[i] for i in [begin, end).
void scatter_rows(const void* source, int64_t row_bytes, IndexedRows<std::byte> out, int64_t begin, int64_t end);

struct CombineShape {
  const int64_t* row_of_choice = nullptr;  // [T * K]; nullptr: choice c is row c
  const float* weights = nullptr;          // [T * K]; nullptr: all 1
  int64_t top_k = 1;
  int64_t width = 0;  // of a row
};

// out[t] = sum_k weights[t * K + k] * rows[row of t * K + k], summed in fp32 and rounded once, for t in [begin, end).
void combine_rows(const float* rows, float* out, const CombineShape& shape, int64_t begin, int64_t end);
void combine_rows(const Bf16* rows, Bf16* out, const CombineShape& shape, int64_t begin, int64_t end);

}  // namespace expertmesh::ops::cpu
