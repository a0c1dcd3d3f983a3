// SPDX-License-Identifier: Apache-2.0
// bf16 matrix products for experts with few and ever-changing numbers of rows, on CPUs with AVX-512 BF16 or AVX2. With
// AVX-512 the library's products are as fast for one shape, but prepare a new kernel for each number of rows; these
// take any at no cost, and read and write rows through index lists. Sums are fp32 in order of k, rounded once. No
// torch. Threads: any. Format of Packed: [columns / 16][depth / 2][16][2]: pairs of neighbouring k side by side,
// zero-filled at both ends.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/indexed_rows.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Whether this CPU runs the functions below; calling one elsewhere is a programmer error.
bool has_expert_gemm();

// A matrix [depth, columns] in the packed format, in a buffer that is reused.
class Packed {
 public:
  // From `columns` rows of `depth` contiguous elements: B^T as weights are stored.
  void pack_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth);
  // From `depth` rows of `columns` contiguous elements; row k is rows[index[k]] (nullptr: k).
  void pack(const Bf16* rows, int64_t row_stride, const int64_t* index, int64_t columns, int64_t depth);

  const uint32_t* data() const;
  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t pairs() const { return (depth_ + 1) / 2; }
  int64_t blocks() const { return (columns_ + kLanes - 1) / kLanes; }

 private:
  void resize(int64_t columns, int64_t depth);

  int64_t columns_ = 0, depth_ = 0;
  std::vector<uint32_t> storage_;
};

// c[r, n] = sum_k a[r, k] b[k, n] for r in [0, rows); a's rows have b.depth() elements, c's b.columns().
void expert_gemm(IndexedRows<const Bf16> a, int64_t rows, const Packed& b, IndexedRows<Bf16> c);

// c[m, n] = sum_k a[k, m] b[k, n]: weight gradients, k being the rows of the expert. Depth 0 gives zeros.
void expert_gemm_transposed(const Packed& a, const Packed& b, Bf16* c, int64_t row_stride);

}  // namespace expertmesh::ops::cpu
