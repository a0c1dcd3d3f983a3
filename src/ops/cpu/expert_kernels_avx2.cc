// SPDX-License-Identifier: Apache-2.0
// Tiles of up to 6 rows x 16 columns in 12 accumulators. A bf16 is the upper half of a float: the even k of a pair is
// shifted up, the odd one only masked, and both are multiplied in fp32.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ops/cpu/even_parts.h"
#include "ops/cpu/expert_kernels.h"

#define EXPERTMESH_AVX2_TARGET [[gnu::target("avx2,fma")]]

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kHalf = 8;  // columns in a register
constexpr int64_t kMaxRows = 6;

struct Tile {
  const BfPair* a[kMaxRows] = {};
  const uint32_t* b = nullptr;
  int64_t depth = 0;
  Bf16* c[kMaxRows] = {};
  int64_t columns = 0;
};

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

// The first `elements` of 16.
EXPERTMESH_AVX2_TARGET inline void store_row(Bf16* to, __m256i row, int64_t elements) {
  if (elements >= kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), row);
  } else {
    Bf16 lanes[kLanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), row);
    std::memcpy(to, lanes, static_cast<size_t>(elements) * sizeof(Bf16));
  }
}

EXPERTMESH_AVX2_TARGET inline void store_block(Bf16* to, __m256 low, __m256 high, int64_t columns) {
  store_row(to, _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(low), rounded(high)), 0xd8), columns);
}

template <int kRows>
EXPERTMESH_AVX2_TARGET void run_tile(const Tile& tile) {
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
  const BfPair* a[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) a[i] = tile.a[i];
  const uint32_t* b = tile.b;
  const int64_t pairs = tile.depth / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    __m256 low = even(load_pairs(b)), high = even(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 row = even(broadcast(a[i][pair]));
      sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
    }
    // Loads again: kept pairs would push the sums out of the registers.
    asm volatile("" ::: "memory");
    low = odd(load_pairs(b)), high = odd(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 row = odd(broadcast(a[i][pair]));
      sums[i][0] = _mm256_fmadd_ps(row, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(row, high, sums[i][1]);
    }
    b += kLanes;
  }
  if (tile.depth % 2 != 0) {
    const __m256 low = even(load_pairs(b)), high = even(load_pairs(b + kHalf));
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      uint16_t last;
      std::memcpy(&last, a[i] + pairs, sizeof last);
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
  return std::array<void (*)(const Tile&), sizeof...(kIndex)>{run_tile<static_cast<int>(kIndex) + 1>...};
}
constexpr auto kTiles = make_tiles(std::make_index_sequence<kMaxRows>());

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

EXPERTMESH_AVX2_TARGET void pack_columns(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth, uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t first = 0; first < columns; first += kHalf) {
    uint32_t* to = out + first / kLanes * pairs * kLanes + first % kLanes;
    for (int64_t pair = 0; pair < pairs; pair += kHalf) {
      __m256i in[kHalf], turned[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) {
        in[i] =
            first + i < columns ? load_row(rows.row(first + i) + 2 * pair, depth - 2 * pair) : _mm256_setzero_si256();
      }
      transpose_8x8(in, turned);
      for (int64_t i = 0; i < std::min(kHalf, pairs - pair); ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (pair + i) * kLanes), turned[i]);
      }
    }
  }
  if (columns % kLanes == 0 || columns % kLanes > kHalf) return;
  // The last block's second half has no column at all.
  uint32_t* to = out + columns / kLanes * pairs * kLanes + kHalf;
  for (int64_t pair = 0; pair < pairs; ++pair) std::memset(to + pair * kLanes, 0, kHalf * sizeof(uint32_t));
}

EXPERTMESH_AVX2_TARGET inline __m256i widened(__m128i lanes) { return _mm256_cvtepu16_epi32(lanes); }

// Sixteen columns of two rows side by side.
EXPERTMESH_AVX2_TARGET inline void interleave(__m256i low, __m256i high, __m256i (&out)[2]) {
  out[0] = _mm256_or_si256(widened(_mm256_castsi256_si128(low)),
                           _mm256_slli_epi32(widened(_mm256_castsi256_si128(high)), 16));
  out[1] = _mm256_or_si256(widened(_mm256_extracti128_si256(low, 1)),
                           _mm256_slli_epi32(widened(_mm256_extracti128_si256(high, 1)), 16));
}

// Columns at a time: whole cache lines of a row, and no more streams to write than a set of the first cache has ways.
constexpr int64_t kPackColumns = 64;

EXPERTMESH_AVX2_TARGET void pack_rows(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth, uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2, block_size = pairs * kLanes;
  for (int64_t first = 0; first < columns; first += kPackColumns, out += kPackColumns / kLanes * block_size) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const Bf16* low = rows.row(2 * pair);
      const Bf16* high = 2 * pair + 1 < depth ? rows.row(2 * pair + 1) : nullptr;
      uint32_t* to = out + pair * kLanes;
      for (int64_t column = first; column < std::min(first + kPackColumns, columns); column += kLanes) {
        __m256i both[2];
        interleave(load_row(low + column, columns - column),
                   high ? load_row(high + column, columns - column) : _mm256_setzero_si256(), both);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), both[0]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kHalf), both[1]);
        to += block_size;
      }
    }
  }
}

void multiply(const ExpertProduct& product) {
  pack_rows({product.pack.rows, product.pack.stride, nullptr}, product.pack.columns, product.pack.depth,
            product.pack.out);
  Tile tile;
  tile.depth = product.depth;
  const EvenParts tiles(product.rows, kMaxRows);
  for (int64_t column = 0; column < product.columns; column += kLanes) {
    tile.columns = std::min(kLanes, product.columns - column);
    tile.b = product.b + column * ((product.depth + 1) / 2);
    for (int64_t i = 0; i < tiles.count(); ++i) {
      for (int64_t r = 0; r < tiles.size(i); ++r) {
        tile.a[r] = reinterpret_cast<const BfPair*>(product.a.row(tiles.begin(i) + r));
        tile.c[r] = product.c.row(tiles.begin(i) + r) + column;
      }
      kTiles[static_cast<size_t>(tiles.size(i) - 1)](tile);
    }
  }
}

// 16 rows of 16 columns at a time: pairs of rows side by side, then these turned.
EXPERTMESH_AVX2_TARGET void transpose(IndexedRows<const Bf16> in, int64_t rows, int64_t columns, IndexedRows<Bf16> out,
                                      bool /*is_read_late*/) {
  const auto load_from = [&](int64_t row, int64_t column) __attribute__((target("avx2,fma"))) {
    return row < rows ? load_row(in.row(row) + column, columns - column) : _mm256_setzero_si256();
  };
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      __m256i block[2][kHalf], turned[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) {
        __m256i both[2];
        interleave(load_from(row + 2 * i, column), load_from(row + 2 * i + 1, column), both);
        block[0][i] = both[0], block[1][i] = both[1];
      }
      for (int64_t half = 0; half < 2; ++half) {
        transpose_8x8(block[half], turned);
        for (int64_t i = 0; i < std::min(kHalf, columns - column - half * kHalf); ++i) {
          store_row(out.row(column + half * kHalf + i) + row, turned[i], rows - row);
        }
      }
    }
  }
}

}  // namespace

const ExpertKernels kExpertKernelsAvx2{
    .name = "avx2",
    .panel_rows = 24,
    .copies_lists = false,
    .multiply = multiply,
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .transpose = transpose,
    .runs_here = [] { return processor_isa() != Isa::kBaseline; },
};

}  // namespace expertmesh::ops::cpu
