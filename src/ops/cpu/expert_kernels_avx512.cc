// SPDX-License-Identifier: Apache-2.0
// Tiles of up to 24 accumulators: 6 rows x 64 columns, 8 x 48, 12 x 32 or 12 x 16. A step takes pairs of k: loads of
// packed B, pairs of each row of A broadcast. So loads hide behind the products even where both come from the second
// cache level.
#include <algorithm>
#include <cstring>

#include "ops/cpu/bf16_vec.h"
#include "ops/cpu/even_parts.h"
#include "ops/cpu/expert_kernels.h"
#include "ops/cpu/pair_engines.h"
#include "ops/cpu/transpose_pairs.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kPairsAhead = 128;  // that a row of A is fetched before it is used

// All lanes below `count`.
inline __mmask32 mask_of(int64_t count) {
  if (count <= 0) return 0;
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

// Elements i of low and of high side by side, for i in [16 half, 16 half + 16).
EXPERTMESH_AVX512_TARGET inline __m512i interleave(__m512i low, __m512i high, __m512i order) {
  return _mm512_permutex2var_epi16(low, order, high);
}

EXPERTMESH_AVX512_TARGET inline __m512i pair_order(int half) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 * half));
  return _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(32)), 16));
}

// Two neighbouring rows (high may be nullptr: zeros) become a pair of each block of columns.
EXPERTMESH_AVX512_TARGET inline void pack_pair(const Bf16* low, const Bf16* high, int64_t columns, int64_t block_size,
                                               const __m512i (&order)[2], uint32_t* to) {
  for (int64_t column = 0; column < columns; column += 2 * kLanes, to += 2 * block_size) {
    const __mmask32 mask = mask_of(columns - column);
    const __m512i low_row = _mm512_maskz_loadu_epi16(mask, low + column);
    const __m512i high_row = high ? _mm512_maskz_loadu_epi16(mask, high + column) : _mm512_setzero_si512();
    _mm512_storeu_si512(to, interleave(low_row, high_row, order[0]));
    if (columns - column > kLanes) _mm512_storeu_si512(to + block_size, interleave(low_row, high_row, order[1]));
  }
}

// Packs the next operand beside a product, a little at each step. Packed at once, the processor would wait for memory
// and then multiply while the memory has nothing to do; and only fetched ahead, rows would drive each other out of the
// cache, as rows of weights are often a power of two apart.
class Beside {
 public:
  EXPERTMESH_AVX512_TARGET Beside(const PackedNext& pack, int64_t steps) : pack_(pack), pairs_((pack.depth + 1) / 2) {
    per_step_ = (pairs_ + steps - 1) / std::max<int64_t>(steps, 1);
  }

  EXPERTMESH_AVX512_TARGET EXPERTMESH_INLINE void step() {
    if (done_ < pairs_) pack_pairs(std::min(done_ + per_step_, pairs_));
  }
  EXPERTMESH_AVX512_TARGET void finish() { pack_pairs(pairs_); }

 private:
  static constexpr int64_t kAhead = 16;  // pairs of rows

  EXPERTMESH_AVX512_TARGET EXPERTMESH_INLINE void pack_pairs(int64_t end) {
    const __m512i order[2] = {pair_order(0), pair_order(1)};
    for (; done_ < end; ++done_) {
      const Bf16* low = pack_.rows + 2 * done_ * pack_.stride;
      if (2 * (done_ + kAhead) + 1 < pack_.depth) {
        const Bf16* ahead = low + 2 * kAhead * pack_.stride;
        for (int64_t column = 0; column < pack_.columns; column += 2 * kLanes) {
          __builtin_prefetch(ahead + column);
          __builtin_prefetch(ahead + pack_.stride + column);
        }
      }
      pack_pair(low, 2 * done_ + 1 < pack_.depth ? low + pack_.stride : nullptr, pack_.columns, pairs_ * kLanes, order,
                pack_.out + done_ * kLanes);
    }
  }

  const PackedNext& pack_;
  int64_t pairs_, per_step_ = 0, done_ = 0;
};

struct Tile {
  const BfPair* a[kMostPairRows] = {};
  const uint32_t* b = nullptr;
  int64_t b_block = 0;
  int64_t depth = 0;
  Bf16* c[kMostPairRows] = {};
  int64_t columns = 0;
  bool is_read_late = false;
  Beside* beside = nullptr;
  int64_t a_next = 0;  // pairs to the next tile's rows, where they are worth fetching
};

EXPERTMESH_AVX512_TARGET inline void store_block(Bf16* to, __m512 sums, int64_t columns) {
  const __m256i rounded = round_to_bf16(sums);
  if (columns >= kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  } else if (columns > 0) {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1U << columns) - 1U), rounded);
  }
}

EXPERTMESH_AVX512_TARGET inline void store_line(Bf16* to, __m512i elements, bool is_read_late) {
  if (is_read_late && reinterpret_cast<uintptr_t>(to) % sizeof elements == 0) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), elements);
  } else {
    _mm512_storeu_si512(to, elements);
  }
}

EXPERTMESH_AVX512_TARGET inline void store_two_blocks(Bf16* to, __m512 first, __m512 second, int64_t columns,
                                                      bool is_read_late) {
  if (columns < 2 * kLanes) {
    store_block(to, first, columns);
    store_block(to + kLanes, second, columns - kLanes);
    return;
  }
  store_line(to, round_to_bf16(first, second), is_read_late);
}

template <typename Engine, int kRows, int kBlocks>
EXPERTMESH_AVX512_TARGET void run_tile(const Tile& tile) {
  __m512 sums[kRows][kBlocks];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const BfPair* a[kRows];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) a[i] = tile.a[i];
  const uint32_t* b = tile.b;
  const int64_t pairs = tile.depth / 2, all_pairs = (tile.depth + 1) / 2;
  BfPair last[kRows];
  for (int64_t pair = 0; pair < all_pairs;) {
    int64_t count = std::min(kStepPairs, pairs - pair);
    if (count > 0) [[likely]] {
      tile.beside->step();
      if (tile.a_next) {
        const int64_t ahead = pair + kPairsAhead < pairs ? kPairsAhead : kPairsAhead - pairs + tile.a_next;
#pragma GCC unroll 12
        for (int i = 0; i < kRows; ++i) __builtin_prefetch(a[i] + ahead);
      }
    } else {  // the last k of an odd depth, whose pair is not there
      for (int i = 0; i < kRows; ++i) {
        uint16_t k;
        std::memcpy(&k, a[i], sizeof k);
        last[i] = k;
        a[i] = &last[i];
      }
      count = 1;
    }
    Engine::template add<false>(PairStep<kRows>{a, 1, b, tile.b_block, kLanes, count}, sums);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) a[i] += count;
    pair += count;
    b += count * kLanes;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j + 1 < kBlocks; j += 2) {
      store_two_blocks(tile.c[i] + j * kLanes, sums[i][j], sums[i][j + 1], tile.columns - j * kLanes,
                       tile.is_read_late);
    }
    if constexpr (kBlocks % 2 != 0) {
      store_block(tile.c[i] + (kBlocks - 1) * kLanes, sums[i][kBlocks - 1], tile.columns - (kBlocks - 1) * kLanes);
    }
  }
}

using TileFunction = void (*)(const Tile&);
template <typename Engine>
constexpr auto kTiles = functions_of_sizes<Engine>(
    []<int kRows, int kBlocks>() -> TileFunction { return run_tile<Engine, kRows, kBlocks>; });

template <typename Engine>
void multiply(const ExpertProduct& product) {
  const EvenParts strips((product.columns + kLanes - 1) / kLanes, Engine::kMaxBlocks);
  Tile tile;
  tile.b_block = (product.depth + 1) / 2 * kLanes;
  tile.depth = product.depth;
  tile.is_read_late = product.is_read_late;
  const int64_t steps = (product.depth / 2 + kStepPairs - 1) / kStepPairs;
  Beside beside(product.pack,
                steps * strips.count() * EvenParts(product.rows, Engine::kMostRows[Engine::kMaxBlocks - 1]).count());
  tile.beside = &beside;
  for (int64_t strip = 0; strip < strips.count(); ++strip) {
    const int64_t column = strips.begin(strip) * kLanes, blocks = strips.size(strip);
    tile.b = product.b + strips.begin(strip) * tile.b_block;
    tile.columns = std::min(blocks * kLanes, product.columns - column);
    const auto& functions = kTiles<Engine>[static_cast<size_t>(blocks - 1)];
    const EvenParts tiles(product.rows, Engine::kMostRows[blocks - 1]);
    for (int64_t i = 0; i < tiles.count(); ++i) {
      const int64_t first = tiles.begin(i), rows = tiles.size(i);
      for (int64_t r = 0; r < rows; ++r) {
        tile.a[r] = reinterpret_cast<const BfPair*>(product.a.row(first + r));
        tile.c[r] = product.c.row(first + r) + column;
      }
      tile.a_next = product.is_a_far ? rows * product.a.stride / 2 : 0;
      functions[static_cast<size_t>(rows - 1)](tile);
    }
  }
  beside.finish();
}

EXPERTMESH_AVX512_TARGET void pack_columns(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth,
                                           uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t first = 0; first < columns; first += kLanes) {
    const int64_t block_columns = std::min(kLanes, columns - first);
    const Bf16* from[kLanes];
    for (int64_t i = 0; i < block_columns; ++i) from[i] = rows.row(first + i);
    for (int64_t pair = 0; pair < pairs; pair += kLanes) {
      uint32_t* to = out + (first / kLanes * pairs + pair) * kLanes;
      const __mmask32 mask = mask_of(depth - 2 * pair);
      __m512i block[16], turned[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        block[i] = i < block_columns ? _mm512_maskz_loadu_epi16(mask, from[i] + 2 * pair) : _mm512_setzero_si512();
      }
      transpose_16x16(block, turned);
      const int64_t count = std::min(kLanes, pairs - pair);
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kLanes, turned[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(to + i * kLanes, turned[i]);
      }
    }
  }
}

// Columns at a time: whole cache lines of a row, and no more streams to write than a set of the first cache has ways.
constexpr int64_t kPackColumns = 128;

EXPERTMESH_AVX512_TARGET void pack_rows(IndexedRows<const Bf16> rows, int64_t columns, int64_t depth, uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2, block_size = pairs * kLanes;
  const __m512i order[2] = {pair_order(0), pair_order(1)};
  for (int64_t first = 0; first < columns; first += kPackColumns, out += kPackColumns / kLanes * block_size) {
    const int64_t end = std::min(first + kPackColumns, columns);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const Bf16* low = rows.row(2 * pair);
      const Bf16* high = 2 * pair + 1 < depth ? rows.row(2 * pair + 1) : nullptr;
      pack_pair(low + first, high ? high + first : nullptr, end - first, block_size, order, out + pair * kLanes);
    }
  }
}

// The first `count` <= 32 of a register. A store under a mask of 16-bit lanes is slow on some processors.
EXPERTMESH_AVX512_TARGET inline void store_elements(Bf16* to, __m512i elements, int64_t count, bool is_read_late) {
  if (count == 2 * kLanes) {
    store_line(to, elements, is_read_late);
    return;
  }
  __m256i half = _mm512_castsi512_si256(elements);
  if (count >= kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
    half = _mm512_extracti64x4_epi64(elements, 1);
    to += kLanes;
    count -= kLanes;
  }
  if (count == kLanes / 2) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(half));
  } else if (count > 0) {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>(mask_of(count)), half);
  }
}

// 32 rows of 16 columns at a time: pairs of rows side by side, then these turned.
EXPERTMESH_AVX512_TARGET void transpose(IndexedRows<const Bf16> in, int64_t rows, int64_t columns,
                                        IndexedRows<Bf16> out, bool is_read_late) {
  const __m512i order = pair_order(0);
  for (int64_t row = 0; row < rows; row += 2 * kLanes) {
    const int64_t block_rows = std::min(2 * kLanes, rows - row);
    const Bf16* from[2 * kLanes] = {};
    for (int64_t i = 0; i < block_rows; ++i) from[i] = in.row(row + i);
    for (int64_t column = 0; column < columns; column += kLanes) {
      const int64_t block_columns = std::min(kLanes, columns - column);
      const auto mask = static_cast<__mmask16>(mask_of(block_columns));
      __m512i block[16], turned[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
        if (2 * i < block_rows) low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, from[2 * i] + column));
        if (2 * i + 1 < block_rows) {
          high = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, from[2 * i + 1] + column));
        }
        block[i] = interleave(low, high, order);
      }
      transpose_16x16(block, turned);
      for (int64_t i = 0; i < block_columns; ++i) {
        store_elements(out.row(column + i) + row, turned[i], block_rows, is_read_late);
      }
    }
  }
}

template <typename Engine>
constexpr ExpertKernels kernels_on(std::string_view name, bool (*runs_here)()) {
  return {.name = name,
          .panel_rows = 24,
          .copies_lists = false,
          .multiply = multiply<Engine>,
          .pack_rows = pack_rows,
          .pack_columns = pack_columns,
          .transpose = transpose,
          .runs_here = runs_here};
}

}  // namespace

constinit const ExpertKernels kExpertKernelsAvx512Bf16 =
    kernels_on<PairDots>("avx512_bf16", [] { return processor_isa() == Isa::kAvx512 && processor_sets().has_bf16; });
constinit const ExpertKernels kExpertKernelsAvx512 =
    kernels_on<PairFmas>("avx512", [] { return processor_isa() == Isa::kAvx512; });

}  // namespace expertmesh::ops::cpu
