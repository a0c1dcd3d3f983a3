// SPDX-License-Identifier: Apache-2.0
// C = A B or C += A B in bf16 with fp32 sums on AMX tiles, over an engine (amx.h), for blocks that are in the cache. B
// and C are tiles where they lie; so is A where its pairs lie one after the other. Otherwise A is copied, or turned,
// into tiles, 32 rows at a time. What is not a whole tile is copied and completed with zeros. No torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "ops/cpu/amx_product.h"

namespace expertmesh::ops::cpu {

// Two neighbouring bf16, wherever they start.
using AmxPair [[gnu::aligned(1), gnu::may_alias]] = uint32_t;

// C [rows, columns] (+)= A [rows, pairs] B [pairs, columns], in pairs of neighbours along the depth. Strides in
// elements.
struct AmxPairProduct {
  const AmxPair* a = nullptr;
  int64_t a_row_stride = 0;
  int64_t a_step = 1;          // from one pair of a row to the next
  const AmxPair* b = nullptr;  // rows of pairs of contiguous columns
  int64_t b_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 16
  int64_t pairs = 0;
  bool adds = false;
};

constexpr int64_t kAmxPairSide = 2 * kAmxRows;     // rows and columns of a block of C
constexpr int64_t kAmxPairSteps = 64;              // tiles of a row of A that are copied at a time
constexpr int64_t kAmxPairColumns = 8 * kAmxRows;  // that meet them

struct AmxPairScratch {
  alignas(64) AmxPair a[2 * kAmxPairSteps][kAmxRows][kAmxRows];
  alignas(64) AmxPair a_tails[2][kAmxRows][kAmxRows];
  alignas(64) AmxPair b_tails[kAmxPairColumns / kAmxRows][kAmxRows][kAmxRows];
  alignas(64) float c[kAmxPairSide][kAmxPairSide];
};

// Rows become columns.
EXPERTMESH_INLINE void turn_pairs(const UintVec (&in)[16], UintVec (&out)[16]) {
  UintVec two[16], four[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    two[i] = __builtin_shufflevector(in[i], in[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    two[i + 1] = __builtin_shufflevector(in[i], in[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const UintVec a = two[i + j], b = two[i + 2 + j];
      four[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      four[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
  // four[4g + c] holds columns c, 4 + c, 8 + c, 12 + c of rows 4g to 4g + 3, a quarter each.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    UintVec even[2], odd[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const UintVec a = four[8 * h + c], b = four[8 * h + 4 + c];
      even[h] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      odd[h] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    out[c] = __builtin_shufflevector(even[0], even[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    out[4 + c] = __builtin_shufflevector(odd[0], odd[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    out[8 + c] = __builtin_shufflevector(even[0], even[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    out[12 + c] = __builtin_shufflevector(odd[0], odd[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}

// The first `count` pairs, then zeros.
EXPERTMESH_INLINE UintVec load_pairs(const AmxPair* from, int64_t count) {
  UintVec v{};
  if (count >= kAmxRows) [[likely]] {
    std::memcpy(&v, from, sizeof v);
  } else if (count > 0) {
    std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(AmxPair));
  }
  return v;
}

// The pair of row r and depth p is from[r * row_stride + p * step]; `rows` and `pairs` of them exist.
EXPERTMESH_INLINE void copy_tile(const AmxPair* from, int64_t row_stride, int64_t step, int64_t rows, int64_t pairs,
                                 AmxPair (&out)[kAmxRows][kAmxRows]) {
  if (step == 1) {
    for (int64_t r = 0; r < kAmxRows; ++r, from += row_stride) {
      const UintVec v = load_pairs(from, r < rows ? pairs : 0);
      std::memcpy(out[r], &v, sizeof v);
    }
  } else if (row_stride == 1) {
    UintVec in[16], turned[16];
#pragma GCC unroll 16
    for (int64_t p = 0; p < kAmxRows; ++p) in[p] = load_pairs(from + p * step, p < pairs ? rows : 0);
    turn_pairs(in, turned);
    std::memcpy(out, turned, sizeof turned);
  } else {
    for (int64_t r = 0; r < kAmxRows; ++r) {
      for (int64_t p = 0; p < kAmxRows; ++p) out[r][p] = r < rows && p < pairs ? from[r * row_stride + p * step] : 0;
    }
  }
}

struct NoBackground {
  EXPERTMESH_INLINE void step() {}
  EXPERTMESH_INLINE void finish() {}
};

// Rows [row, row + 32), pairs [first, first + count) of them, columns [column, column + columns).
template <typename Engine>
EXPERTMESH_INLINE void multiply_pair_rows(const AmxPairProduct& product, int64_t row, int64_t column, int64_t columns,
                                          int64_t first, int64_t count, AmxPairScratch& scratch) {
  const int64_t rows = std::min(product.rows - row, kAmxPairSide), row_tiles = (rows + kAmxRows - 1) / kAmxRows;
  const int64_t whole = count / kAmxRows, steps = (count + kAmxRows - 1) / kAmxRows;
  constexpr auto kPairBytes = static_cast<int64_t>(sizeof(AmxPair));
  TileBlock block;
  const auto copy = [&](int64_t i, int64_t s, AmxPair(&to)[kAmxRows][kAmxRows]) __attribute__((always_inline)) {
    const AmxPair* from =
        product.a + (row + i * kAmxRows) * product.a_row_stride + (first + s * kAmxRows) * product.a_step;
    copy_tile(from, product.a_row_stride, product.a_step, rows - i * kAmxRows, count - s * kAmxRows, to);
  };
  if (product.a_step == 1 && rows % kAmxRows == 0) {
    block.a = product.a + row * product.a_row_stride + first;
    block.a_stride = product.a_row_stride * kPairBytes;
    block.a_step = kAmxRowBytes;
    block.a_tile = kAmxRows * block.a_stride;
  } else {
    for (int64_t i = 0; i < row_tiles; ++i) {
      for (int64_t s = 0; s < whole; ++s) copy(i, s, scratch.a[i * whole + s]);
    }
    block.a = scratch.a;
    block.a_tile = whole * kAmxTileBytes;
  }
  if (whole < steps) {
    for (int64_t i = 0; i < row_tiles; ++i) copy(i, whole, scratch.a_tails[i]);
    block.a_tail = scratch.a_tails;
  }
  block.b_stride = product.b_stride * kPairBytes;
  block.b_step = kAmxRows * block.b_stride;
  block.b_tile = kAmxRowBytes;
  block.steps = whole;
  block.adds = product.adds || first > 0;
  NoBackground nothing;
  for (int64_t i = 0; i < columns; i += kAmxPairSide) {
    const int64_t column_tiles = std::min(columns - i, kAmxPairSide) / kAmxRows;
    float* c = product.c + row * product.c_stride + column + i;
    const int64_t c_bytes = product.c_stride * static_cast<int64_t>(sizeof(float));
    const auto row_bytes = static_cast<size_t>(column_tiles * kAmxRowBytes);
    block.b = product.b + first * product.b_stride + column + i;
    block.b_tail = whole < steps ? scratch.b_tails[i / kAmxRows] : nullptr;
    const bool is_whole = rows % kAmxRows == 0;
    block.c = is_whole ? c : scratch.c[0];
    block.c_stride = is_whole ? c_bytes : static_cast<int64_t>(sizeof scratch.c[0]);
    for (int64_t r = 0; !is_whole && block.adds && r < rows; ++r) {
      std::memcpy(scratch.c[r], c + r * product.c_stride, row_bytes);
    }
    multiply_tiles<Engine>(block, row_tiles, column_tiles, nothing);
    for (int64_t r = 0; !is_whole && r < rows; ++r) std::memcpy(c + r * product.c_stride, scratch.c[r], row_bytes);
  }
}

template <typename Engine>
EXPERTMESH_INLINE void multiply_pairs_on_tiles(const AmxPairProduct& product) {
  static thread_local const std::unique_ptr<AmxPairScratch> scratch(new AmxPairScratch);
  const TileScope<Engine> scope;
  constexpr int64_t kPairsAtOnce = kAmxPairSteps * kAmxRows;
  for (int64_t column = 0; column < product.columns; column += kAmxPairColumns) {
    const int64_t columns = std::min(product.columns - column, kAmxPairColumns);
    for (int64_t first = 0; first == 0 || first < product.pairs; first += kPairsAtOnce) {
      const int64_t count = std::min(product.pairs - first, kPairsAtOnce), left = count % kAmxRows;
      for (int64_t i = 0; left > 0 && i < columns / kAmxRows; ++i) {
        const AmxPair* from = product.b + (first + count - left) * product.b_stride + column + i * kAmxRows;
        copy_tile(from, product.b_stride, 1, left, kAmxRows, scratch->b_tails[i]);
      }
      for (int64_t row = 0; row < product.rows; row += kAmxPairSide) {
        multiply_pair_rows<Engine>(product, row, column, columns, first, count, *scratch);
      }
    }
  }
}

// On a processor with AMX.
void multiply_pairs_amx(const AmxPairProduct& product);

}  // namespace expertmesh::ops::cpu
