// SPDX-License-Identifier: Apache-2.0
// Strips of C stay in up to 24 registers: six rows by 64 columns, or twelve by 32.
#include "ops/cpu/pair_product.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/amx_pair_product.h"
#include "ops/cpu/bf16_vec.h"
#include "ops/cpu/even_parts.h"
#include "ops/cpu/pair_engines.h"
#include "ops/cpu/transpose_pairs.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kLine = 64;  // bytes

// A strip of C from (row, column) on, in registers.
template <typename Engine, bool kByColumn, int kRows, int kBlocks>
EXPERTMESH_AVX512_TARGET void multiply_strip(const PairProduct& product, int64_t row, int64_t column,
                                             const char* stream) {
  const int64_t row_stride = product.a.row_stride, step = product.a.step, c_stride = product.c_stride;
  const BfPair* a[kRows];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) a[i] = product.a.data + (row + i) * row_stride;
  const BfPair* b = product.b + column;
  float* c = product.c + row * c_stride + column;
  __m512 sums[kRows][kBlocks];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      sums[i][j] = product.adds ? _mm512_loadu_ps(c + i * c_stride + j * kLanes) : _mm512_setzero_ps();
    }
  }
  constexpr int64_t kLines = int64_t{kRows} * kBlocks;
  const int64_t num_steps = (product.pairs + kStepPairs - 1) / kStepPairs;
  const int64_t lines_a_step = num_steps ? (kLines + num_steps - 1) / num_steps : 0;
  int64_t fetched = product.adds_to_memory || stream != nullptr ? 0 : kLines;
  for (int64_t pair = 0; pair < product.pairs; pair += kStepPairs) {
    // A few lines at a time: all at once would hold up the loads of B.
    for (const int64_t end = std::min(fetched + lines_a_step, kLines); fetched < end; ++fetched) {
      if (product.adds_to_memory) {
        _mm_prefetch(c + (kRows + fetched / kBlocks) * c_stride + fetched % kBlocks * kLanes, _MM_HINT_T0);
      } else {
        _mm_prefetch(stream + fetched * kLine, _MM_HINT_T1);
      }
    }
    const int64_t count = std::min(kStepPairs, product.pairs - pair);
    Engine::template add<kByColumn>(PairStep<kRows>{a, step, b, kLanes, product.b_stride, count}, sums);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) a[i] += kStepPairs * step;
    b += kStepPairs * product.b_stride;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) _mm512_storeu_ps(c + i * c_stride + j * kLanes, sums[i][j]);
  }
}

using Strip = void (*)(const PairProduct&, int64_t row, int64_t column, const char* stream);
template <typename Engine, bool kByColumn>
constexpr auto kStrips = functions_of_sizes<Engine>(
    []<int kRows, int kBlocks>() -> Strip { return multiply_strip<Engine, kByColumn, kRows, kBlocks>; });

// The first `elements` of 32, then zeros.
EXPERTMESH_AVX512_TARGET inline __m512i load_some(const Bf16* p, int64_t elements) {
  if (elements >= 32) return _mm512_loadu_si512(p);
  return elements <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((__mmask32{1} << elements) - 1, p);
}

EXPERTMESH_AVX512_TARGET void pack_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth,
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
EXPERTMESH_AVX512_TARGET inline __m512i load_wide(const Bf16* p, int64_t elements) {
  if (elements >= kLanes) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  if (elements <= 0) return _mm512_setzero_si512();
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << elements) - 1U), p));
}

EXPERTMESH_AVX512_TARGET void pack_rows(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth,
                                        BfPair* out, int64_t out_columns, int64_t out_pairs) {
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
template <typename Engine, bool kByColumn>
void multiply_in_strips(const PairProduct& product) {
  const char* stream = static_cast<const char*>(product.stream);
  int64_t stream_lines = product.stream_bytes / kLine;
  for (int64_t column = 0; column < product.columns; column += Engine::kMaxBlocks * kLanes) {
    const int64_t blocks = std::min<int64_t>(Engine::kMaxBlocks, (product.columns - column) / kLanes);
    const auto& strips = kStrips<Engine, kByColumn>[static_cast<size_t>(blocks - 1)];
    const EvenParts parts(product.rows, Engine::kMostRows[blocks - 1]);
    for (int64_t i = 0; i < parts.count(); ++i) {
      const int64_t rows = parts.size(i);
      const bool streams = stream_lines >= rows * blocks;
      strips[static_cast<size_t>(rows - 1)](product, parts.begin(i), column, streams ? stream : nullptr);
      if (!streams) continue;
      stream += rows * blocks * kLine;
      stream_lines -= rows * blocks;
    }
  }
}

template <typename Engine>
void multiply_in_registers(const PairProduct& product) {
  if (product.a.step == 1) {
    multiply_in_strips<Engine, false>(product);
  } else {
    EXPERTMESH_CHECK(product.a.row_stride == 1);
    multiply_in_strips<Engine, true>(product);
  }
}

}  // namespace

bool has_pair_products() { return processor_isa() == Isa::kAvx512; }

bool multiplies_on_tiles() { return instruction_sets().may_use_tiles && has_amx(); }

const char* pair_products_name() {
  if (multiplies_on_tiles()) return "amx";
  return instruction_sets().prefers_dots ? "avx512_bf16" : "avx512";
}

void multiply_pairs(const PairProduct& product) {
  if (multiplies_on_tiles()) {
    multiply_pairs_amx(product);
  } else if (instruction_sets().prefers_dots) {
    multiply_in_registers<PairDots>(product);
  } else {
    multiply_in_registers<PairFmas>(product);
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
