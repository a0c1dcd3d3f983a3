// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/linear_head.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "ops/cpu/amx.h"
#include "ops/cpu/bf16_vec.h"
#include "ops/cpu/flush_subnormals.h"
#include "ops/cpu/transpose_pairs.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kPairsAtOnce = 144;  // of ids that dX adds up: 36 KiB of weights; on AMX all of a band

// Maximum, e^(score - maximum) and their sum for each token of a panel: scores [rows][kHeadPanel]. Panels are whole
// cache lines of exps, which go around the caches: they are read when the whole vocabulary has been through.
EXPERTMESH_AVX512_TARGET void soften_panel(const float* scores, int64_t rows, int64_t width, Bf16* exps,
                                           int64_t exps_stride, float* maxima, float* sums) {
  constexpr int64_t kVectors = 2;
  for (int64_t column = 0; column < width; column += kVectors * kLanes) {
    const float* score = scores + column;
    // A finite floor: a token whose scores here are all -infinity has a sum of 0, not NaN.
    __m512 most[kVectors], sum[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) most[v] = _mm512_set1_ps(-FLT_MAX);
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        most[v] = _mm512_max_ps(_mm512_loadu_ps(score + r * kHeadPanel + v * kLanes), most[v]);
      }
    }
    sum[0] = sum[1] = _mm512_setzero_ps();
    for (int64_t r = 0; r < rows; ++r) {
      __m512 e[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        e[v] = exp_of_negative(_mm512_sub_ps(_mm512_loadu_ps(score + r * kHeadPanel + v * kLanes), most[v]));
        sum[v] = _mm512_add_ps(sum[v], e[v]);
      }
      if (exps == nullptr) continue;
      _mm512_stream_si512(reinterpret_cast<__m512i*>(exps + r * exps_stride + column), round_to_bf16(e[0], e[1]));
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(maxima + column + v * kLanes, most[v]);
      _mm512_storeu_ps(sums + column + v * kLanes, sum[v]);
    }
  }
}

// In fp64, so that a vocabulary of 250,000 costs no digits.
EXPERTMESH_AVX512_TARGET void add_up_groups(const HeadChunk& chunk, int64_t column, double* log_sums) {
  const int64_t groups = chunk.num_groups();
  Vec most = splat(-FLT_MAX);
  for (int64_t g = 0; g < groups; ++g) most = max(load(chunk.group_max + g * chunk.columns + column), most);
  double totals[kLanes] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * chunk.columns + column;
    const Vec part = load(chunk.group_sum + at) * exp(load(chunk.group_max + at) - most);
    for (int64_t i = 0; i < kLanes; ++i) totals[i] += static_cast<double>(part[i]);
  }
  for (int64_t i = 0; i < kLanes; ++i) log_sums[i] = static_cast<double>(most[i]) + std::log(totals[i]);
}

// What turns e^(score - the group's maximum) into softmax times scale.
EXPERTMESH_AVX512_TARGET void fill_factors(const HeadChunk& chunk, int64_t group, float* factors) {
  const float* maxima = chunk.group_max + group * chunk.columns;
  for (int64_t column = 0; column < chunk.columns; column += kLanes) {
    const Vec share = exp(load(maxima + column) - load(chunk.log_sums + column));
    store(factors + column, share * load(chunk.scales + column));
  }
}

// G of two rows (the second may be missing), as rows and side by side.
EXPERTMESH_AVX512_TARGET void fill_two_rows(const Bf16* exps, const float* factors, int64_t columns, bool has_second,
                                            Bf16* grads, BfPair* pairs) {
  for (int64_t column = 0; column < columns; column += kLanes) {
    const __m512 factor = _mm512_loadu_ps(factors + column);
    const __m256i first = round_to_bf16(_mm512_mul_ps(to_fp32(load_half(exps + column)), factor));
    __m256i second = _mm256_setzero_si256();
    store_half(grads + column, first);
    if (has_second) {
      second = round_to_bf16(_mm512_mul_ps(to_fp32(load_half(exps + columns + column)), factor));
      store_half(grads + columns + column, second);
    }
    if (pairs != nullptr) _mm512_storeu_si512(pairs + column, pair_up(first, second));
  }
}

// Weights of two rows (the second may be missing) side by side, into panels of the hidden size.
EXPERTMESH_AVX512_TARGET void pack_two_rows(const Bf16* rows, int64_t hidden, bool has_second, BfPair* out,
                                            int64_t panel_stride) {
  for (int64_t begin = 0; begin < hidden; begin += kHeadPanel, out += panel_stride) {
    const int64_t width = std::min(kHeadPanel, hidden - begin);
    for (int64_t i = 0; i < width; i += kLanes) {
      const __m256i first = load_half(rows + begin + i);
      const __m256i second = has_second ? load_half(rows + hidden + begin + i) : _mm256_setzero_si256();
      _mm512_storeu_si512(out + i, pair_up(first, second));
    }
  }
}

// G of a group, [pairs][columns], into the rows of its tokens.
EXPERTMESH_AVX512_TARGET void turn_gradients(const BfPair* pairs, int64_t num_pairs, int64_t columns, BfPair* out,
                                             int64_t token_stride) {
  for (int64_t pair = 0; pair < num_pairs; pair += kLanes) {
    const int64_t count = std::min(kLanes, num_pairs - pair);
    for (int64_t column = 0; column < columns; column += kLanes) {
      __m512i in[16], turned[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        in[i] = i < count ? _mm512_loadu_si512(pairs + (pair + i) * columns + column) : _mm512_setzero_si512();
      }
      transpose_16x16(in, turned);
      const auto mask = static_cast<__mmask16>((1U << count) - 1U);
      BfPair* to = out + column * token_stride + pair;
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) _mm512_mask_storeu_epi32(to + i * token_stride, mask, turned[i]);
    }
  }
}

int64_t rows_of(const HeadChunk& chunk, int64_t group) {
  return std::min(kHeadGroup, chunk.vocab - group * kHeadGroup);
}

// body(id within the group, column) for each target in it.
template <typename Body>
void for_targets(const HeadChunk& chunk, int64_t group, const Body& body) {
  const int64_t first = group * kHeadGroup;
  const HeadTarget* const end = chunk.targets + chunk.num_targets;
  const HeadTarget* target =
      std::lower_bound(chunk.targets, end, first, [](const HeadTarget& t, int64_t id) { return t.id < id; });
  for (; target != end && target->id < first + kHeadGroup; ++target) body(target->id - first, target->column);
}

}  // namespace

int64_t head_scratch_size(const HeadChunk& chunk) {
  // Factors, G by rows, G by pairs.
  return std::max(kHeadGroup * kHeadPanel, chunk.columns * (1 + kHeadGroup / 2 + kHeadGroup / 2));
}

void head_scores(const HeadChunk& chunk, int64_t group, float* scratch) {
  const FlushSubnormals flush;
  const AmxScope tiles;
  const int64_t rows = rows_of(chunk, group), pairs = chunk.hidden / 2, columns = chunk.columns;
  const Bf16* weight = chunk.weight + group * kHeadGroup * chunk.hidden;
  const int64_t next_bytes = group + 1 < chunk.num_groups()
                                 ? rows_of(chunk, group + 1) * chunk.hidden * static_cast<int64_t>(sizeof(Bf16))
                                 : 0;
  const int64_t num_panels = (columns + kHeadPanel - 1) / kHeadPanel;
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    const int64_t begin = panel * kHeadPanel, width = std::min(kHeadPanel, columns - begin);
    // The panel's share of the next group's weights.
    const int64_t from = next_bytes * panel / num_panels, to = next_bytes * (panel + 1) / num_panels;
    multiply_pairs({.a = {.data = reinterpret_cast<const BfPair*>(weight), .row_stride = pairs, .step = 1},
                    .b = chunk.x_transposed + begin * pairs,
                    .b_stride = width,
                    .c = scratch,
                    .c_stride = kHeadPanel,
                    .rows = rows,
                    .columns = width,
                    .pairs = pairs,
                    .stream = reinterpret_cast<const char*>(weight + rows * chunk.hidden) + from,
                    .stream_bytes = to - from});
    soften_panel(scratch, rows, width,
                 chunk.exps == nullptr ? nullptr : chunk.exps + group * kHeadGroup * columns + begin, columns,
                 chunk.group_max + group * columns + begin, chunk.group_sum + group * columns + begin);
    for_targets(chunk, group, [&](int64_t row, int64_t column) {
      if (column < begin || column >= begin + width) return;
      chunk.target_scores[column] = scratch[row * kHeadPanel + column - begin];
    });
  }
  _mm_sfence();  // exps are there for other threads
}

void head_log_sums(const HeadChunk& chunk, int64_t begin, int64_t end, double* log_sums) {
  for (int64_t column = begin; column < end; column += kLanes) add_up_groups(chunk, column, log_sums + column);
}

void head_gradients(const HeadChunk& chunk, int64_t group, const HeadBand& band, float* grad_weight, bool adds,
                    float* scratch) {
  const FlushSubnormals flush;
  const AmxScope tiles;
  const int64_t rows = rows_of(chunk, group), columns = chunk.columns, hidden = chunk.hidden;
  float* factors = scratch;
  auto* grads = reinterpret_cast<Bf16*>(scratch + columns);
  const Bf16* exps = chunk.exps + group * kHeadGroup * columns;
  const int64_t first_pair = (group * kHeadGroup - band.first) / 2, num_pairs = (rows + 1) / 2;
  const bool is_turned = band.gradients != nullptr && band.step == 1;
  BfPair* pairs = nullptr;
  int64_t pairs_stride = columns;
  if (is_turned) {
    pairs = reinterpret_cast<BfPair*>(grads + kHeadGroup * columns);
  } else if (band.gradients != nullptr) {
    pairs = band.gradients + first_pair * band.step;
    pairs_stride = band.step;
  }
  fill_factors(chunk, group, factors);
  for (int64_t r = 0; r < rows; r += 2) {
    fill_two_rows(exps + r * columns, factors, columns, r + 1 < rows, grads + r * columns,
                  pairs == nullptr ? nullptr : pairs + r / 2 * pairs_stride);
  }
  for_targets(chunk, group, [&](int64_t row, int64_t column) {
    Bf16 grad;
    store(&grad, splat(chunk.target_grads[column]), 1);
    grads[row * columns + column] = grad;
    if (pairs == nullptr) return;
    std::memcpy(reinterpret_cast<char*>(pairs + row / 2 * pairs_stride + column) + row % 2 * sizeof grad, &grad,
                sizeof grad);
  });
  if (is_turned) turn_gradients(pairs, num_pairs, columns, band.gradients + first_pair, band.token_stride);
  if (pairs != nullptr) {
    const Bf16* weight = chunk.weight + group * kHeadGroup * hidden;
    for (int64_t r = 0; r < rows; r += 2) {
      pack_two_rows(weight + r * hidden, hidden, r + 1 < rows, band.weights + (first_pair + r / 2) * kHeadPanel,
                    band.panel_size);
    }
  }
  if (grad_weight == nullptr) return;
  for (int64_t begin = 0; begin < hidden; begin += kHeadPanel) {
    const int64_t width = std::min(kHeadPanel, hidden - begin);
    multiply_pairs({.a = {.data = reinterpret_cast<const BfPair*>(grads), .row_stride = columns / 2, .step = 1},
                    .b = chunk.x_pairs + begin * columns / 2,
                    .b_stride = width,
                    .c = grad_weight + group * kHeadGroup * hidden + begin,
                    .c_stride = hidden,
                    .rows = rows,
                    .columns = width,
                    .pairs = columns / 2,
                    .adds = adds,
                    .adds_to_memory = adds});
  }
}

void head_grad_hidden(const HeadChunk& chunk, const HeadBand& band, int64_t panel, int64_t begin, int64_t end,
                      bool adds, float* sum) {
  const int64_t width = std::min(kHeadPanel, chunk.hidden - panel * kHeadPanel);
  const BfPair* weights = band.weights + panel * band.panel_size;
  const int64_t num_pairs = (std::min(band.size, chunk.vocab - band.first) + 1) / 2;
  const int64_t at_once = multiplies_on_tiles() ? num_pairs : kPairsAtOnce;
  for (int64_t pair = 0; pair < num_pairs; pair += at_once) {
    const int64_t count = std::min(at_once, num_pairs - pair);
    const int64_t next = std::min(at_once, num_pairs - pair - count);
    multiply_pairs({.a = {.data = band.gradients + pair * band.step + begin * band.token_stride,
                          .row_stride = band.token_stride,
                          .step = band.step},
                    .b = weights + pair * kHeadPanel,
                    .b_stride = kHeadPanel,
                    .c = sum + begin * kHeadPanel,
                    .c_stride = kHeadPanel,
                    .rows = end - begin,
                    .columns = width,
                    .pairs = count,
                    .adds = adds || pair > 0,
                    .stream = weights + (pair + count) * kHeadPanel,
                    .stream_bytes = next * kHeadPanel * static_cast<int64_t>(sizeof(BfPair))});
  }
}

}  // namespace expertmesh::ops::cpu
