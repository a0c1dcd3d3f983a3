// SPDX-License-Identifier: Apache-2.0
// Strips of C in registers: six rows by as many vectors as leave one register for A and a row of B.
#include "ops/cpu/tile_product.h"

#include "ops/cpu/own_vec.h"

namespace expertmesh::ops::cpu {
namespace {

struct Product {
  Tile a;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t rows, cols, depth;
};

// kRows rows by kVecs vectors of C at (row, col).
template <typename V, int kRows, int kVecs>
EXPERTMESH_INLINE void multiply_strip(const Product& product, int64_t row, int64_t col) {
  const float* a = product.a.data + row * product.a.row_stride;
  const float* b = product.b + col;
  float* c = product.c + row * product.c_stride + col;
  V sums[kRows][kVecs];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) std::memcpy(&sums[r][v], c + r * product.c_stride + v * kWidth<V>, sizeof(V));
  }
  for (int64_t k = 0; k < product.depth; ++k, a += product.a.col_stride, b += product.b_stride) {
    V right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) std::memcpy(&right[v], b + v * kWidth<V>, sizeof(V));
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const float left = a[r * product.a.row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[r][v] += right[v] * left;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) std::memcpy(c + r * product.c_stride + v * kWidth<V>, &sums[r][v], sizeof(V));
  }
}

// Every row of some columns. Rows are a multiple of four: sixes first, then what is left in fours.
template <typename V, int kVecs>
EXPERTMESH_INLINE void multiply_columns(const Product& product, int64_t col) {
  int64_t row = 0;
  for (int64_t left = product.rows; left > 0;) {
    const bool takes_six = left % 6 == 0 || left > 8;
    if (takes_six) {
      multiply_strip<V, 6, kVecs>(product, row, col);
    } else {
      multiply_strip<V, 4, kVecs>(product, row, col);
    }
    row += takes_six ? 6 : 4;
    left -= takes_six ? 6 : 4;
  }
}

template <typename V, int kVecs>
EXPERTMESH_INLINE void multiply_from(const Product& product, int64_t col) {
  constexpr int64_t kCols = kVecs * kWidth<V>;
  for (; col + kCols <= product.cols; col += kCols) multiply_columns<V, kVecs>(product, col);
  if constexpr (kVecs > 1) {
    if (col < product.cols) multiply_from<V, kVecs - 1>(product, col);
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]] void multiply_avx512(const Product& product) {
  multiply_from<Vec, 4>(product, 0);
}

[[gnu::target("avx2,fma")]] void multiply_avx2(const Product& product) { multiply_from<Vec8, 2>(product, 0); }

}  // namespace

void multiply_add(Tile a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t rows, int64_t cols,
                  int64_t depth) {
  const Product product{a, b, b_stride, c, c_stride, rows, cols, depth};
  switch (processor_isa()) {
    case Isa::kAvx512:
      return multiply_avx512(product);
    case Isa::kAvx2:
      return multiply_avx2(product);
    case Isa::kBaseline:
      return multiply_from<Vec4, 2>(product, 0);
  }
}

}  // namespace expertmesh::ops::cpu
