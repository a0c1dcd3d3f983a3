// SPDX-License-Identifier: Apache-2.0
// Strips of up to six rows by 64 columns of C stay in 24 registers. A step takes one pair of the depth: four loads of
// B, one broadcast of A per row, 24 dot products.
#include "ops/cpu/pair_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ops/cpu/amx_pair_product.h"
#include "ops/cpu/bf16_vec.h"
#include "ops/cpu/transpose_pairs.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kMaxRows = 6, kMaxBlocks = 4;
constexpr int64_t kPanel = kMaxBlocks * kLanes;
constexpr int64_t kLine = 64;  // bytes

template <int kRows, int kBlocks>
EXPERTMESH_BF16_TARGET void multiply_strip(const PairProduct& product, int64_t row, int64_t column,
                                           const char* stream) {
  const BfPair* a = product.a.data + row * product.a.row_stride;
  const BfPair* b = product.b + column;
  float* c = product.c + row * product.c_stride + column;
  const int64_t row_stride = product.a.row_stride, step = product.a.step, b_stride = product.b_stride;
  __m512 sums[kRows][kBlocks];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      sums[i][j] = product.adds ? _mm512_loadu_ps(c + i * product.c_stride + j * kLanes) : _mm512_setzero_ps();
    }
  }
  const auto run = [&](int64_t pairs) EXPERTMESH_BF16_LAMBDA {
    for (; pairs > 0; --pairs) {
      __m512bh columns[kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) columns[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + j * kLanes));
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const __m512bh left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i * row_stride])));
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], left, columns[j]);
      }
      a += step;
      b += b_stride;
    }
  };
  int64_t left = product.pairs;
  if (product.adds_to_memory || stream != nullptr) {
    // A line at a time: all at once would hold up the loads of B.
    const int64_t share = left / (kRows * kBlocks);
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kBlocks; ++j, left -= share) {
        if (product.adds_to_memory) {
          _mm_prefetch(c + (kRows + i) * product.c_stride + j * kLanes, _MM_HINT_T0);
        } else {
          _mm_prefetch(stream + int64_t{i * kBlocks + j} * kLine, _MM_HINT_T1);
        }
        run(share);
      }
    }
  }
  run(left);
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) _mm512_storeu_ps(c + i * product.c_stride + j * kLanes, sums[i][j]);
  }
}

using Strip = void (*)(const PairProduct&, int64_t row, int64_t column, const char* stream);

template <size_t... kIndex>
constexpr auto make_strips(std::index_sequence<kIndex...> /*indices*/) {
  return std::array<Strip, sizeof...(kIndex)>{
      multiply_strip<static_cast<int>(kIndex / kMaxBlocks) + 1, static_cast<int>(kIndex % kMaxBlocks) + 1>...};
}
constexpr auto kStrips = make_strips(std::make_index_sequence<kMaxRows * kMaxBlocks>());

Strip strip_of(int64_t rows, int64_t blocks) {
  return kStrips[static_cast<size_t>((rows - 1) * kMaxBlocks + blocks - 1)];
}

// The first `elements` of 32, then zeros.
EXPERTMESH_BF16_TARGET inline __m512i load_some(const Bf16* p, int64_t elements) {
  if (elements >= 32) return _mm512_loadu_si512(p);
  return elements <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((__mmask32{1} << elements) - 1, p);
}

EXPERTMESH_BF16_TARGET void pack_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth,
                                            BfPair* out, int64_t out_columns, int64_t out_pairs) {
  for (int64_t column = 0; column < out_columns; column += kLanes) {
    for (int64_t pair = 0; pair < out_pairs; pair += kLanes) {
      __m512i in[16], turned[16];
      for (int64_t i = 0; i < kLanes; ++i) {
        in[i] = column + i < columns ? load_some(rows + (column + i) * row_stride + 2 * pair, depth - 2 * pair)
                                     : _mm512_setzero_si512();
      }
      transpose_16x16(in, turned);
      const int64_t count = std::min(kLanes, out_pairs - pair);
      for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(out + (pair + i) * out_columns + column, turned[i]);
    }
  }
}

// The first `elements` of 16, each in the lower half of a lane, then zeros.
EXPERTMESH_BF16_TARGET inline __m512i load_wide(const Bf16* p, int64_t elements) {
  if (elements >= kLanes) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  if (elements <= 0) return _mm512_setzero_si512();
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << elements) - 1U), p));
}

EXPERTMESH_BF16_TARGET void pack_rows(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, BfPair* out,
                                      int64_t out_columns, int64_t out_pairs) {
  for (int64_t pair = 0; pair < out_pairs; ++pair, out += out_columns) {
    const Bf16* low = rows + 2 * pair * row_stride;
    const int64_t in_low = 2 * pair < depth ? columns : 0, in_high = 2 * pair + 1 < depth ? columns : 0;
    for (int64_t column = 0; column < out_columns; column += kLanes) {
      const __m512i first = load_wide(low + column, in_low - column);
      const __m512i second = load_wide(low + row_stride + column, in_high - column);
      _mm512_storeu_si512(out + column, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
  }
}

// Strips of a panel are of nearly one height: 64 rows are nine sixes and two fives.
void multiply_in_strips(const PairProduct& product) {
  const int64_t num_strips = (product.rows + kMaxRows - 1) / kMaxRows;
  if (num_strips == 0) return;
  const int64_t low = product.rows / num_strips, num_high = product.rows % num_strips;
  const char* stream = static_cast<const char*>(product.stream);
  int64_t stream_lines = product.stream_bytes / kLine;
  for (int64_t column = 0; column < product.columns; column += kPanel) {
    const int64_t blocks = std::min(kMaxBlocks, (product.columns - column) / kLanes);
    int64_t row = 0;
    for (int64_t i = 0; i < num_strips; ++i) {
      const int64_t rows = i < num_high ? low + 1 : low;
      const bool streams = stream_lines >= rows * blocks;
      strip_of(rows, blocks)(product, row, column, streams ? stream : nullptr);
      row += rows;
      if (!streams) continue;
      stream += rows * blocks * kLine;
      stream_lines -= rows * blocks;
    }
  }
}

}  // namespace

bool has_pair_products() { return has_bf16_dots(); }

bool multiplies_on_tiles() { return instruction_sets().load(std::memory_order_relaxed).may_use_tiles && has_amx(); }

void multiply_pairs(const PairProduct& product) {
  if (multiplies_on_tiles()) {
    multiply_pairs_amx(product);
  } else {
    multiply_in_strips(product);
  }
}

void pack_pairs_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, BfPair* out,
                           int64_t out_columns, int64_t out_pairs) {
  pack_transposed(rows, row_stride, columns, depth, out, out_columns, out_pairs);
}

void pack_pairs(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, BfPair* out, int64_t out_columns,
                int64_t out_pairs) {
  pack_rows(rows, row_stride, columns, depth, out, out_columns, out_pairs);
}

}  // namespace expertmesh::ops::cpu
