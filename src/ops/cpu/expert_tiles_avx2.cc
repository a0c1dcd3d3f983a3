// SPDX-License-Identifier: Apache-2.0
// Tiles of up to 6 rows x 16 columns in 12 accumulators. A bf16 is the upper half of a float: the even k of a pair is
// shifted up, the odd one only masked, and both are multiplied in fp32.
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "ops/cpu/expert_tiles.h"

#define EXPERTMESH_AVX2_TARGET [[gnu::target("avx2,fma")]]

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kHalf = 8;  // columns in a register

EXPERTMESH_AVX2_TARGET inline __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }

EXPERTMESH_AVX2_TARGET inline __m256 odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
}

EXPERTMESH_AVX2_TARGET inline __m256i load_pairs(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

EXPERTMESH_AVX2_TARGET inline __m256i broadcast(uint32_t pair) { return _mm256_set1_epi32(static_cast<int>(pair)); }

// Round to nearest even; NaN stays NaN. In the lower half of each lane.
EXPERTMESH_AVX2_TARGET inline __m256i rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), is_nan);
}

EXPERTMESH_AVX2_TARGET inline void store_block(Bf16* to, __m256 low, __m256 high, int64_t columns) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(low), rounded(high)), 0xd8);
  if (columns >= kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  } else {
    Bf16 lanes[kLanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), packed);
    std::memcpy(to, lanes, static_cast<size_t>(columns) * sizeof(Bf16));
  }
}

template <int kRows>
EXPERTMESH_AVX2_TARGET void run_tile(const ExpertTile& tile) {
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
  const Pair* a[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) a[i] = tile.a[i];
  const uint32_t* b = tile.b;
  int64_t at = 0;
  for (int64_t pair = 0; pair < tile.whole_pairs; ++pair) {
    __m256 low = even(load_pairs(b)), high = even(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 row = even(broadcast(a[i][at]));
      sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
    }
    // Loads again: kept pairs would push the sums out of the registers.
    asm volatile("" ::: "memory");
    low = odd(load_pairs(b)), high = odd(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 row = odd(broadcast(a[i][at]));
      sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
    }
    b += kLanes;
    at += tile.a_step;
  }
  if (tile.has_odd) {
    const __m256 low = even(load_pairs(b)), high = even(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      uint16_t last;
      std::memcpy(&last, a[i] + at, sizeof last);
      const __m256 row = even(broadcast(last));
      sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) store_block(tile.c[i], sums[i][0], sums[i][1], tile.columns);
}

template <size_t... kIndex>
constexpr auto make_tiles(std::index_sequence<kIndex...> /*indices*/) {
  return std::array<void (*)(const ExpertTile&), sizeof...(kIndex)>{run_tile<static_cast<int>(kIndex) + 1>...};
}
constexpr auto kTiles = make_tiles(std::make_index_sequence<kMaxTileRows>());

void run(const ExpertTile& tile, int64_t rows) { kTiles[static_cast<size_t>(rows - 1)](tile); }

// 8 rows of 8 pairs each become 8 pairs of 8 columns.
EXPERTMESH_AVX2_TARGET inline void transpose_8x8(const __m256i (&in)[8], __m256i (&out)[8]) {
  __m256i two[8], four[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    two[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
    two[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    four[i] = _mm256_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm256_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm256_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm256_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
  // four[c] holds columns c and 4 + c of rows 0 to 3, four[4 + c] those of rows 4 to 7.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    out[c] = _mm256_permute2x128_si256(four[c], four[4 + c], 0x20);
    out[4 + c] = _mm256_permute2x128_si256(four[c], four[4 + c], 0x31);
  }
}

// The first `elements` <= 16 of a row, then zeros.
EXPERTMESH_AVX2_TARGET inline __m256i load_row(const Bf16* row, int64_t elements) {
  if (elements >= 2 * kHalf) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  Bf16 lanes[2 * kHalf] = {};
  if (elements > 0) std::memcpy(lanes, row, static_cast<size_t>(elements) * sizeof(Bf16));
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
}

EXPERTMESH_AVX2_TARGET void pack_block_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth,
                                                  uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t pair = 0; pair < pairs; pair += kHalf) {
    const int64_t num_pairs = pairs - pair < kHalf ? pairs - pair : kHalf;
    for (int64_t half = 0; half < kLanes; half += kHalf) {
      __m256i in[kHalf], turned[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) {
        in[i] = half + i < columns ? load_row(rows + (half + i) * row_stride + 2 * pair, depth - 2 * pair)
                                   : _mm256_setzero_si256();
      }
      transpose_8x8(in, turned);
      for (int64_t i = 0; i < num_pairs; ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (pair + i) * kLanes + half), turned[i]);
      }
    }
  }
}

EXPERTMESH_AVX2_TARGET inline __m256i widened(__m128i lanes) { return _mm256_cvtepu16_epi32(lanes); }

EXPERTMESH_AVX2_TARGET void pack_pair(const Bf16* low, const Bf16* high, int64_t columns, int64_t block_size,
                                      uint32_t* out) {
  for (int64_t column = 0; column < columns; column += kLanes, out += block_size) {
    const __m256i even_row = load_row(low + column, columns - column);
    const __m256i odd_row = high ? load_row(high + column, columns - column) : _mm256_setzero_si256();
    const __m256i first = _mm256_or_si256(widened(_mm256_castsi256_si128(even_row)),
                                          _mm256_slli_epi32(widened(_mm256_castsi256_si128(odd_row)), 16));
    const __m256i second = _mm256_or_si256(widened(_mm256_extracti128_si256(even_row, 1)),
                                           _mm256_slli_epi32(widened(_mm256_extracti128_si256(odd_row, 1)), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + kHalf), second);
  }
}

}  // namespace

const ExpertTiles kExpertTilesAvx2{1, run, pack_block_transposed, pack_pair};

}  // namespace expertmesh::ops::cpu
