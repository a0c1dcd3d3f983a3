// SPDX-License-Identifier: Apache-2.0
// Two ways of AVX-512 to multiply pairs of bf16 in registers, with one interface: the dot products of AVX-512 BF16, and
// FMAs on pairs that are widened to fp32. Intel's processors make one such dot product in the time of four FMAs, which
// do twice its work; AMD's make one in the time of one. No torch.
#pragma once

#include <array>
#include <utility>

#include "ops/cpu/bf16_vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kStepPairs = 16;  // of a row of A: a cache line
constexpr int kMostPairRows = 12;   // of A at a time

// Up to kStepPairs pairs of the depth of kRows rows: the pair p of row i is rows[i][p], or rows[0][p * step + i] where
// kByColumn. B: for block j of 16 columns, the pairs of p are b[j * b_block + p * b_step + (0 to 15)].
template <int kRows>
struct PairStep {
  const BfPair* const (&rows)[kRows];
  int64_t step;  // where kByColumn
  const BfPair* b;
  int64_t b_block, b_step;
  int64_t pairs;
};

struct PairDots {
  static constexpr int kMaxBlocks = 4;  // of 16 columns
  static constexpr int kMostRows[kMaxBlocks] = {12, 12, 8, 6};

  template <bool kByColumn, int kRows, int kBlocks>
  EXPERTMESH_AVX512_TARGET static EXPERTMESH_INLINE void add(const PairStep<kRows>& a, __m512 (&sums)[kRows][kBlocks]) {
    const BfPair* b = a.b;
    for (int64_t p = 0; p < a.pairs; ++p, b += a.b_step) {
      __m512i columns[kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) columns[j] = _mm512_loadu_si512(b + j * a.b_block);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) {
        const BfPair pair = kByColumn ? a.rows[0][p * a.step + i] : a.rows[i][p];
        const __m512i row = _mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) add_dots(sums[i][j], row, columns[j]);
      }
    }
  }
};

// A bf16 is the upper half of a float. A's pairs are widened into the first cache, from where a broadcast is part of an
// FMA; B's in registers, for 2 operations beside 24 FMAs.
struct PairFmas {
  static constexpr int kMaxBlocks = 2;
  static constexpr int kMostRows[kMaxBlocks] = {12, 12};

  template <bool kByColumn, int kRows, int kBlocks>
  EXPERTMESH_AVX512_TARGET static EXPERTMESH_INLINE void add(const PairStep<kRows>& a, __m512 (&sums)[kRows][kBlocks]) {
    // [row][pair], or [pair][row]: sixteen apart either way.
    alignas(64) float first[16 * kStepPairs], second[16 * kStepPairs];
    const auto widen = [&](int64_t at, __m512i pairs) EXPERTMESH_AVX512_LAMBDA {
      _mm512_store_ps(first + at, widened_first(pairs));
      _mm512_store_ps(second + at, widened_second(pairs));
    };
    if constexpr (kByColumn) {
      constexpr auto kMask = static_cast<__mmask16>((1U << kRows) - 1U);
      for (int64_t p = 0; p < a.pairs; ++p) {
        widen(p * 16, _mm512_maskz_loadu_epi32(kMask, a.rows[0] + p * a.step));
      }
    } else {
      const auto mask = static_cast<__mmask16>((1U << a.pairs) - 1U);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) widen(i * 16, _mm512_maskz_loadu_epi32(mask, a.rows[i]));
    }
    const BfPair* b = a.b;
    constexpr int64_t kRowStep = kByColumn ? 1 : 16, kPairStep = kByColumn ? 16 : 1;
    for (int64_t p = 0; p < a.pairs; ++p, b += a.b_step) {
      __m512i pairs[kBlocks];
#pragma GCC unroll 2
      for (int j = 0; j < kBlocks; ++j) pairs[j] = _mm512_loadu_si512(b + j * a.b_block);
      const auto add_half = [&](const float* rows, const __m512(&columns)[kBlocks]) EXPERTMESH_AVX512_LAMBDA {
#pragma GCC unroll 12
        for (int i = 0; i < kRows; ++i) {
          const __m512 row = _mm512_set1_ps(rows[i * kRowStep + p * kPairStep]);
#pragma GCC unroll 2
          for (int j = 0; j < kBlocks; ++j) sums[i][j] = _mm512_fmadd_ps(row, columns[j], sums[i][j]);
        }
      };
      __m512 columns[kBlocks];
#pragma GCC unroll 2
      for (int j = 0; j < kBlocks; ++j) columns[j] = widened_first(pairs[j]);
      add_half(first, columns);
#pragma GCC unroll 2
      for (int j = 0; j < kBlocks; ++j) columns[j] = widened_second(pairs[j]);
      add_half(second, columns);
    }
  }

 private:
  EXPERTMESH_AVX512_TARGET static EXPERTMESH_INLINE __m512 widened_first(__m512i pairs) {
    return reinterpret_cast<__m512>(_mm512_slli_epi32(pairs, 16));
  }
  EXPERTMESH_AVX512_TARGET static EXPERTMESH_INLINE __m512 widened_second(__m512i pairs) {
    return reinterpret_cast<__m512>(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }
};

// A function for every size of a block of C that fits the engine: make<rows, blocks>() at [blocks - 1][rows - 1].
template <typename Engine, typename Make>
constexpr auto functions_of_sizes(const Make& make) {
  using Function = decltype(make.template operator()<1, 1>());
  std::array<std::array<Function, kMostPairRows>, Engine::kMaxBlocks> table{};
  const auto fill_one = [&]<int kIndex>() {
    constexpr int kBlock = kIndex / kMostPairRows, kRow = kIndex % kMostPairRows;
    if constexpr (kRow < Engine::kMostRows[kBlock])
      table[kBlock][kRow] = make.template operator()<kRow + 1, kBlock + 1>();
  };
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...> /*indices*/) {
    (fill_one.template operator()<kIndex>(), ...);
  }(std::make_integer_sequence<int, Engine::kMaxBlocks * kMostPairRows>());
  return table;
}

}  // namespace expertmesh::ops::cpu
