// SPDX-License-Identifier: Apache-2.0
// Tiles of up to 6 rows x 64 columns in 24 accumulators. A step takes one k pair: four loads of packed B, one broadcast
// pair of A per row, 24 dot products; loads hide behind them even where B comes from the second cache level.
#include "ops/cpu/expert_tiles.h"

// g++ 12 takes the undefined inputs inside these intrinsics for mistakes of the caller.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <array>
#include <utility>

#define EXPERTMESH_BF16_TARGET [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]]

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kTileBlocks = 4;  // of 16 columns

EXPERTMESH_BF16_TARGET inline __m512bh load_pairs(const uint32_t* p) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
}

EXPERTMESH_BF16_TARGET inline void store_block(Bf16* to, __m512 sums, int64_t columns) {
  const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums));
  if (columns >= kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  } else {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1U << columns) - 1U), rounded);
  }
}

template <int kRows, int kBlocks>
EXPERTMESH_BF16_TARGET void run_tile(const ExpertTile& tile) {
  __m512 sums[kRows][kBlocks];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const Pair* a[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) a[i] = tile.a[i];
  const uint32_t* b = tile.b;
  int64_t at = 0;
  for (int64_t pair = 0; pair < tile.whole_pairs; ++pair) {
    __m512bh columns[kBlocks];
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) columns[j] = load_pairs(b + j * tile.b_block);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i][at])));
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, columns[j]);
    }
    b += kLanes;
    at += tile.a_step;
  }
  if (tile.has_odd) {
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      uint16_t last;
      __builtin_memcpy(&last, a[i] + at, sizeof last);
      const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(last));
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j)
        sums[i][j] = _mm512_dpbf16_ps(sums[i][j], row, load_pairs(b + j * tile.b_block));
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      store_block(tile.c[i] + j * kLanes, sums[i][j], tile.columns - j * kLanes);
    }
  }
}

using TileFunction = void (*)(const ExpertTile&);

// run_tile<rows, blocks> at [(rows - 1) * kTileBlocks + blocks - 1].
template <size_t... kIndex>
constexpr auto make_tiles(std::index_sequence<kIndex...> /*indices*/) {
  return std::array<TileFunction, sizeof...(kIndex)>{
      run_tile<static_cast<int>(kIndex / kTileBlocks) + 1, static_cast<int>(kIndex % kTileBlocks) + 1>...};
}
constexpr auto kTiles = make_tiles(std::make_index_sequence<kMaxTileRows * kTileBlocks>());

void run(const ExpertTile& tile, int64_t rows) {
  const int64_t blocks = (tile.columns + kLanes - 1) / kLanes;
  kTiles[static_cast<size_t>((rows - 1) * kTileBlocks + blocks - 1)](tile);
}

// 16 rows of 16 pairs each become 16 pairs of 16 columns.
EXPERTMESH_BF16_TARGET inline void transpose_16x16(const __m512i (&in)[16], uint32_t* out) {
  __m512i two[16], four[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    two[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    four[i] = _mm512_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm512_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm512_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm512_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
  // four[4g + c] holds columns c, 4 + c, 8 + c, 12 + c of rows 4g to 4g + 3, a 128-bit lane each.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xdd);
    _mm512_storeu_si512(out + c * kLanes, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_storeu_si512(out + (4 + c) * kLanes, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_si512(out + (8 + c) * kLanes, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    _mm512_storeu_si512(out + (12 + c) * kLanes, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}

// The elements [k, k + 32) of up to 16 rows, zeros past `depth` and past `rows`.
EXPERTMESH_BF16_TARGET inline void load_16_rows(const Bf16* first, int64_t row_stride, int64_t rows, int64_t elements,
                                                __m512i (&out)[16]) {
  const __mmask32 mask = elements >= 32 ? ~__mmask32{0} : (__mmask32{1} << elements) - 1;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    out[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, first + i * row_stride) : _mm512_setzero_si512();
  }
}

EXPERTMESH_BF16_TARGET void pack_block_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth,
                                                  uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t pair = 0; pair < pairs; pair += 16) {
    __m512i block[16];
    load_16_rows(rows + 2 * pair, row_stride, columns, depth - 2 * pair, block);
    if (pair + 16 <= pairs) {
      transpose_16x16(block, out + pair * kLanes);
    } else {
      uint32_t edge[16 * kLanes];
      transpose_16x16(block, edge);
      __builtin_memcpy(out + pair * kLanes, edge, static_cast<size_t>((pairs - pair) * kLanes) * sizeof(uint32_t));
    }
  }
}

EXPERTMESH_BF16_TARGET inline __m512i load_wide(const Bf16* p, int64_t columns) {
  const __mmask16 mask = columns >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1U << columns) - 1U);
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
}

// One pair of rows (high may be nullptr: zeros) into every block of columns.
EXPERTMESH_BF16_TARGET void pack_pair(const Bf16* low, const Bf16* high, int64_t columns, int64_t block_size,
                                      uint32_t* out) {
  for (int64_t column = 0; column < columns; column += kLanes, out += block_size) {
    __m512i pairs = load_wide(low + column, columns - column);
    if (high) pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(load_wide(high + column, columns - column), 16));
    _mm512_storeu_si512(out, pairs);
  }
}

}  // namespace

const ExpertTiles kExpertTilesAvx512{kTileBlocks, run, pack_block_transposed, pack_pair};

}  // namespace expertmesh::ops::cpu
