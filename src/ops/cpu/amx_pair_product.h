// SPDX-License-Identifier: Apache-2.0
// The product of pair_product.h on AMX tiles, over an engine (amx.h). B and C are tiles where they lie; so is A where
// its pairs lie one after the other. Otherwise A is turned into tiles, 32 rows at a time. What is not a whole tile is
// copied and completed with zeros. No torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "ops/cpu/amx_product.h"
#include "ops/cpu/pair_product.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kAmxPairSteps = 64;              // tiles of a row of A that are copied at a time
constexpr int64_t kAmxPairColumns = 8 * kAmxRows;  // that meet them

struct AmxPairScratch {
  alignas(64) BfPair a[2 * kAmxPairSteps][kAmxRows][kAmxRows];
  alignas(64) BfPair a_tails[2][kAmxRows][kAmxRows];
  alignas(64) BfPair b_tails[kAmxPairColumns / kAmxRows][kAmxRows][kAmxRows];
  alignas(64) float c[kAmxSide][kAmxSide];
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
EXPERTMESH_INLINE UintVec load_pairs(const BfPair* from, int64_t count) {
  UintVec v{};
  if (count >= kAmxRows) [[likely]] {
    std::memcpy(&v, from, sizeof v);
  } else if (count > 0) {
    std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(BfPair));
  }
  return v;
}

// The pair of row r and depth p is from[r * row_stride + p * step]; `rows` and `pairs` of them exist.
EXPERTMESH_INLINE void copy_tile(const BfPair* from, int64_t row_stride, int64_t step, int64_t rows, int64_t pairs,
                                 BfPair (&out)[kAmxRows][kAmxRows]) {
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

// Asks for what comes next, a little at each step.
class FetchPairs {
 public:
  // All bytes of the stream in about this many steps.
  EXPERTMESH_INLINE FetchPairs(const PairProduct& product, int64_t steps)
      : stream_(static_cast<const char*>(product.stream)), end_(stream_ + product.stream_bytes) {
    lines_a_step_ = amx_parts(product.stream_bytes / kAmxRowBytes, std::max<int64_t>(steps, 1));
  }

  // 32 rows of 32 columns that are added to next.
  EXPERTMESH_INLINE void next_sums(const float* c, int64_t stride, int64_t rows, int64_t steps) {
    row_ = c;
    row_stride_ = stride;
    rows_ = rows;
    rows_a_step_ = amx_parts(rows, std::max<int64_t>(steps, 1));
  }

  EXPERTMESH_INLINE void step() {
    for (int64_t i = 0; i < lines_a_step_ && stream_ < end_; ++i, stream_ += kAmxRowBytes) {
      __builtin_prefetch(stream_, 0, 2);
    }
    for (int64_t i = 0; i < rows_a_step_ && rows_ > 0; ++i, --rows_, row_ += row_stride_) {
      __builtin_prefetch(row_, 1);
      __builtin_prefetch(row_ + kAmxRows, 1);
    }
  }
  EXPERTMESH_INLINE void stored() {}

 private:
  const char *stream_, *end_;
  int64_t lines_a_step_;
  const float* row_ = nullptr;
  int64_t row_stride_ = 0, rows_ = 0, rows_a_step_ = 0;
};

// Rows [row, row + 32), pairs [first, first + count) of them, columns [column, column + columns).
template <typename Engine>
EXPERTMESH_INLINE void multiply_pair_rows(const PairProduct& product, int64_t row, int64_t column, int64_t columns,
                                          int64_t first, int64_t count, AmxPairScratch& scratch,
                                          TileBlocks<Engine>& blocks, FetchPairs& fetch) {
  const int64_t rows = std::min(product.rows - row, kAmxSide), row_tiles = amx_parts(rows, kAmxRows);
  const int64_t whole = count / kAmxRows, steps = amx_parts(count, kAmxRows);
  constexpr auto kPairBytes = static_cast<int64_t>(sizeof(BfPair));
  TileBlock block;
  const auto copy = [&](int64_t i, int64_t s, BfPair(&to)[kAmxRows][kAmxRows]) __attribute__((always_inline)) {
    const BfPair* from =
        product.a.data + (row + i * kAmxRows) * product.a.row_stride + (first + s * kAmxRows) * product.a.step;
    copy_tile(from, product.a.row_stride, product.a.step, rows - i * kAmxRows, count - s * kAmxRows, to);
  };
  if (product.a.step == 1 && rows % kAmxRows == 0) {
    block.a = product.a.data + row * product.a.row_stride + first;
    block.a_stride = product.a.row_stride * kPairBytes;
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
  for (int64_t i = 0; i < columns; i += kAmxSide) {
    const int64_t column_tiles = std::min(columns - i, kAmxSide) / kAmxRows;
    float* c = product.c + row * product.c_stride + column + i;
    const int64_t c_bytes = product.c_stride * static_cast<int64_t>(sizeof(float));
    block.b = product.b + first * product.b_stride + column + i;
    block.b_tail = whole < steps ? scratch.b_tails[i / kAmxRows] : nullptr;
    if (product.adds_to_memory) {
      // The next columns of these rows; at their end, the first ones of the next rows.
      const float* next = i + kAmxSide < columns ? c + kAmxSide : c - i + kAmxSide * product.c_stride;
      fetch.next_sums(next, product.c_stride, rows, whole);
    }
    if (rows % kAmxRows == 0) {
      block.sums = {.c = c, .c_stride = c_bytes, .c_tile = kAmxRows * c_bytes};
      blocks.multiply(block, row_tiles, column_tiles, fetch);
      continue;
    }
    constexpr int64_t kStride = sizeof scratch.c[0];
    const auto row_bytes = static_cast<size_t>(column_tiles * kAmxRowBytes);
    for (int64_t r = 0; block.adds && r < rows; ++r) std::memcpy(scratch.c[r], c + r * product.c_stride, row_bytes);
    block.sums = {.c = scratch.c[0], .c_stride = kStride, .c_tile = kAmxRows * kStride};
    blocks.multiply(block, row_tiles, column_tiles, fetch);
    blocks.finish();
    for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * product.c_stride, scratch.c[r], row_bytes);
  }
}

template <typename Engine>
EXPERTMESH_INLINE void multiply_pairs_on_tiles(const PairProduct& product) {
  static thread_local const std::unique_ptr<AmxPairScratch> scratch(new AmxPairScratch);
  const TileScope<Engine> scope;
  constexpr int64_t kPairsAtOnce = kAmxPairSteps * kAmxRows;
  const int64_t num_blocks = amx_parts(product.rows, kAmxSide) * amx_parts(product.columns, kAmxSide);
  FetchPairs fetch(product, num_blocks * (product.pairs / kAmxRows));
  TileBlocks<Engine> blocks;
  for (int64_t column = 0; column < product.columns; column += kAmxPairColumns) {
    const int64_t columns = std::min(product.columns - column, kAmxPairColumns);
    for (int64_t first = 0; first == 0 || first < product.pairs; first += kPairsAtOnce) {
      const int64_t count = std::min(product.pairs - first, kPairsAtOnce), left = count % kAmxRows;
      for (int64_t i = 0; left > 0 && i < columns / kAmxRows; ++i) {
        const BfPair* from = product.b + (first + count - left) * product.b_stride + column + i * kAmxRows;
        copy_tile(from, product.b_stride, 1, left, kAmxRows, scratch->b_tails[i]);
      }
      for (int64_t row = 0; row < product.rows; row += kAmxSide) {
        multiply_pair_rows(product, row, column, columns, first, count, *scratch, blocks, fetch);
      }
      blocks.finish();  // the next ones may add to them
    }
  }
}

// On a processor with AMX.
void multiply_pairs_amx(const PairProduct& product);

}  // namespace expertmesh::ops::cpu
