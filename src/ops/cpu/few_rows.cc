// SPDX-License-Identifier: Apache-2.0
// Tiles of some rows by four columns, each a vector of sums along the depth; then four vectors become one of four sums.
#include "ops/cpu/few_rows.h"

#include <algorithm>

#include "ops/cpu/own_vec.h"
#include "ops/cpu/split_rows.h"
#include "ops/cpu/tile_product.h"
#include "ops/cpu/tile_rows.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int kColumns = 4;

constexpr int64_t kBytesAhead = 4096;  // at least

// The lines of kSplit elements.
template <typename T>
EXPERTMESH_INLINE void prefetch_split(const T* p) {
  for (int64_t i = 0; i < kSplit; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i);
}

// In each 128 bits of the result: two sums of two elements each of a, then of b.
EXPERTMESH_INLINE Vec4 add_halves(Vec4 a, Vec4 b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

EXPERTMESH_INLINE Vec8 add_halves(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
         __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}

EXPERTMESH_INLINE Vec add_halves(Vec a, Vec b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// In each 128 bits of the result: the sums of neighbours in a, then in b.
EXPERTMESH_INLINE Vec4 add_neighbours(Vec4 a, Vec4 b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}

EXPERTMESH_INLINE Vec8 add_neighbours(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

EXPERTMESH_INLINE Vec add_neighbours(Vec a, Vec b) {
  return __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

EXPERTMESH_INLINE Vec4 add_quarters(Vec4 v) { return v; }

EXPERTMESH_INLINE Vec4 add_quarters(Vec8 v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}

EXPERTMESH_INLINE Vec4 add_quarters(Vec v) {
  return add_quarters(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

// The sums of four vectors, one after the other.
template <typename V>
EXPERTMESH_INLINE Vec4 four_sums(const V (&v)[kColumns]) {
  return add_quarters(add_neighbours(add_halves(v[0], v[1]), add_halves(v[2], v[3])));
}

// Where x, some elements on, meets four columns of w.
template <typename V, int kRows>
struct Sums {
  V v[kRows][kColumns];

  EXPERTMESH_INLINE void clear() {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) v[r][c] = V{};
    }
  }

  EXPERTMESH_INLINE void add(const float* x, int64_t x_stride, const V (&w)[kColumns]) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V left = load_as<V>(x + r * x_stride);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) v[r][c] += left * w[c];
    }
  }

  // kSplit elements along the depth.
  EXPERTMESH_INLINE void add_split(const float* x, int64_t x_stride, const float* const (&w)[kColumns]) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kSplit; i += kWidth<V>) {
      V right[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) right[c] = load_as<V>(w[c] + i);
      add(x + i, x_stride, right);
    }
  }

  EXPERTMESH_INLINE void add_split(const float* x, int64_t x_stride, const Bf16* const (&w)[kColumns]) {
    using Bits = BitsOf<V>;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kLanes; i += kWidth<V>) {
      Bits pairs[kColumns];
      V right[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) std::memcpy(&pairs[c], w[c] + 2 * i, sizeof(V));
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) right[c] = reinterpret_cast<V>(pairs[c] << 16);
      add(x + i, x_stride, right);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) right[c] = reinterpret_cast<V>(pairs[c] & 0xffff0000U);
      add(x + kLanes + i, x_stride, right);
    }
  }
};

// Past the last column the last one is taken again, and its sums are dropped. The first tile of some columns asks for
// what later ones will read: `ahead` elements of w further on.
template <typename V, int kRows, bool kIsFirst, typename T>
EXPERTMESH_INLINE void multiply_tile(const FewRows<T>& product, int64_t row, int64_t column, int64_t ahead) {
  const float* x = product.x + row * product.x_stride;
  const T* w[kColumns];
  for (int c = 0; c < kColumns; ++c) w[c] = product.w + std::min(column + c, product.columns - 1) * product.w_stride;
  Sums<V, kRows> sums;
  sums.clear();
  int64_t k = 0;
  for (; k + kSplit <= product.depth; k += kSplit) {
    const T* const at[kColumns] = {w[0] + k, w[1] + k, w[2] + k, w[3] + k};
    if constexpr (kIsFirst) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) prefetch_split(at[c] + ahead);
    }
    sums.add_split(x + k, product.x_stride, at);
  }
  if (k < product.depth) {
    T rest[kColumns][kSplit] = {};
    for (int c = 0; c < kColumns; ++c) {
      std::memcpy(rest[c], w[c] + k, static_cast<size_t>(product.depth - k) * sizeof(T));
    }
    const T* const at[kColumns] = {rest[0], rest[1], rest[2], rest[3]};
    sums.add_split(x + k, product.x_stride, at);
  }
  float* y = product.y + row * product.y_stride + column;
  const int64_t columns = std::min<int64_t>(kColumns, product.columns - column);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Vec4 sum = four_sums(sums.v[r]);
    if (columns == kColumns) [[likely]] {
      std::memcpy(y + r * product.y_stride, &sum, sizeof sum);
    } else {
      std::memcpy(y + r * product.y_stride, &sum, static_cast<size_t>(columns) * sizeof(float));
    }
  }
}

template <typename V, int kRows, typename T>
EXPERTMESH_INLINE void multiply_tile_at(const FewRows<T>& product, int64_t row, int64_t column, int64_t ahead) {
  if (row == 0) {
    multiply_tile<V, kRows, true>(product, row, column, ahead);
  } else {
    multiply_tile<V, kRows, false>(product, row, column, ahead);
  }
}

// kMostRows rows at a time, then what is left at once.
template <typename V, int kMostRows, typename T>
EXPERTMESH_INLINE void multiply(const FewRows<T>& product) {
  const int64_t step = std::max<int64_t>(1, kColumns * product.w_stride);
  const int64_t ahead = step * std::max<int64_t>(1, kBytesAhead / static_cast<int64_t>(sizeof(T)) / step);
  for (int64_t column = 0; column < product.columns; column += kColumns) {
    int64_t row = 0;
    for (; row + kMostRows <= product.rows; row += kMostRows) {
      multiply_tile_at<V, kMostRows>(product, row, column, ahead);
    }
    const int64_t left = product.rows - row;
    if (left == 1) multiply_tile_at<V, 1>(product, row, column, ahead);
    if constexpr (kMostRows > 2) {
      if (left == 2) multiply_tile_at<V, 2>(product, row, column, ahead);
      if (left == 3) multiply_tile_at<V, 3>(product, row, column, ahead);
    }
  }
}

template <typename T>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]] void multiply_avx512(const FewRows<T>& product) {
  multiply<Vec, 4>(product);
}

template <typename T>
[[gnu::target("avx2,fma")]] void multiply_avx2(const FewRows<T>& product) {
  multiply<Vec8, 2>(product);
}

template <typename T>
void multiply_on(const FewRows<T>& product, Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return multiply_avx512(product);
    case Isa::kAvx2:
      return multiply_avx2(product);
    case Isa::kBaseline:
      return multiply<Vec4, 2>(product);
  }
}

constexpr int64_t kBlockColumns = 64;  // of a block of results in fp32

template <typename T>
EXPERTMESH_INLINE void run_linear(const FewRowLinear<T>& linear, float* scratch) {
  const int64_t x_stride = round_up(linear.depth, kSplit);
  float *x = scratch, *y = x + linear.rows * x_stride;
  for (int64_t r = 0; r < linear.rows; ++r) {
    widen_row(linear.x.row(r), linear.depth, x + r * x_stride);
  }
  for (int64_t column = 0; column < linear.columns; column += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, linear.columns - column);
    few_row_product(FewRows<T>{.x = x,
                               .x_stride = x_stride,
                               .rows = linear.rows,
                               .w = linear.w + column * linear.w_stride,
                               .w_stride = linear.w_stride,
                               .columns = columns,
                               .depth = linear.depth,
                               .y = y,
                               .y_stride = kBlockColumns});
    for (int64_t r = 0; r < linear.rows; ++r) {
      store_tile(y + r * kBlockColumns, 0, 1, columns, linear.y.row(r) + column, 0);
    }
  }
}

}  // namespace

void few_row_product(const FewRows<float>& product, Isa isa) { multiply_on(product, isa); }
void few_row_product(const FewRows<Bf16>& product, Isa isa) { multiply_on(product, isa); }

int64_t few_row_scratch(int64_t rows, int64_t depth) { return rows * (round_up(depth, kSplit) + kBlockColumns); }

EXPERTMESH_CPU_KERNEL(void, few_row_linear, (const FewRowLinear<float>& linear, float* scratch), run_linear,
                      (linear, scratch))
EXPERTMESH_CPU_KERNEL(void, few_row_linear, (const FewRowLinear<Bf16>& linear, float* scratch), run_linear,
                      (linear, scratch))

}  // namespace expertmesh::ops::cpu
