// SPDX-License-Identifier: Apache-2.0
// Scores are formed as [keys][queries], blocks of 64 by 128: a query is a lane, so maxima and sums need no step across
// lanes, and rows of keys are what the tensors hold.
//   forward   S = K Q^T; running maximum and sum; O = O e^(old - new) + P^T V
//   backward  P = e^(S - logsumexp); dP = V dO^T; dS = P (dP - <dO, O>); dV += P dO; dK += dS Q; dQ += dS^T K
// A unit packs its keys and values once, a head its queries a block at a time. Queries past the end of the document are
// zeros with a logsumexp of infinity: their P is 0. Of a block that holds queries before its keys, only the columns
// from the first key on (rounded down to a vector) are computed.
#include "ops/cpu/attention_pairs.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/amx.h"
#include "ops/cpu/bf16_vec.h"
#include "ops/cpu/flush_subnormals.h"
#include "ops/cpu/pair_product.h"
#include "ops/cpu/tile_product.h"
#include "ops/cpu/tile_rows.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kKeys = 64, kQueries = 128;

constexpr int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

// Sizes of a unit.
struct Sizes {
  int64_t length, dim;
  int64_t depth;   // pairs of a padded head
  int64_t width;   // elements of a padded head
  int64_t padded;  // length in whole blocks of keys

  Sizes(const AttentionShape& shape, int64_t tokens)
      : length(tokens),
        dim(shape.head_dim),
        depth(round_up(shape.head_dim, 2 * kLanes) / 2),
        width(2 * depth),
        padded(round_up(tokens, kKeys)) {}

  int64_t key_rows() const { return padded * depth; }       // pairs of all keys, by row or two rows side by side
  int64_t query_block() const { return kQueries * depth; }  // pairs of a block of queries
};

// Where a block of queries meets one of keys.
struct Meeting {
  int64_t first_key, keys;
  int64_t begin, columns;  // of the queries that see a key: from `begin` on
  int64_t rows;            // queries that exist from `begin` on
  int64_t diagonal;        // key r is seen by columns from r + diagonal on

  Meeting(const Sizes& sizes, int64_t first_query, int64_t key_block)
      : first_key(key_block * kKeys), keys(std::min(kKeys, sizes.length - first_key)) {
    diagonal = first_key - first_query;
    const int64_t queries = std::min(kQueries, sizes.length - first_query);
    begin = std::max<int64_t>(0, diagonal) / kLanes * kLanes;
    columns = round_up(queries, kLanes) - begin;
    rows = queries - begin;
  }

  // Whether each of the queries sees all of the keys.
  bool sees_all() const { return diagonal + keys - 1 <= 0; }

  // Lanes of the vector at `column` that see key r.
  EXPERTMESH_AVX512_TARGET __mmask16 visible(int64_t r, int64_t column) const {
    const int64_t hidden = r + diagonal - column;
    if (hidden <= 0) return 0xffff;
    return hidden >= kLanes ? 0 : static_cast<__mmask16>(0xffffU << hidden);
  }
};

int64_t num_key_blocks(const Sizes& sizes, int64_t first_query) {
  return blocks_of(std::min(first_query + kQueries, sizes.length), kKeys);
}

// Rows as they are, padded with zeros to [rows up to `padded`][width].
EXPERTMESH_AVX512_TARGET void copy_rows(const Bf16* from, int64_t stride, int64_t rows, const Sizes& sizes,
                                        BfPair* out) {
  auto* to = reinterpret_cast<Bf16*>(out);
  for (int64_t r = 0; r < rows; ++r, from += stride, to += sizes.width) {
    for (int64_t i = 0; i < sizes.width; i += 2 * kLanes) {
      const int64_t left = std::clamp<int64_t>(sizes.dim - i, 0, 2 * kLanes);
      const __mmask32 mask = left == 2 * kLanes ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      _mm512_storeu_si512(to + i, _mm512_maskz_loadu_epi16(mask, from + i));
    }
  }
}

EXPERTMESH_AVX512_TARGET void store_rows(const float* from, int64_t rows, const Sizes& sizes, Bf16* to,
                                         int64_t stride) {
  store_tile(from, sizes.width, rows, sizes.dim, to, stride);
}

// Rows [begin, begin + count), each by its factor.
EXPERTMESH_AVX512_TARGET void scale_rows(const float* factors, int64_t begin, int64_t count, const Sizes& sizes,
                                         float* rows) {
  for (int64_t r = begin; r < begin + count; ++r) {
    if (factors[r] != 1.0F) scale_row(rows + r * sizes.width, sizes.width, factors[r]);
  }
}

// S = K Q^T of a meeting, from its first column on; or dP, of values and output gradients.
void multiply_keys(const BfPair* keys, const BfPair* queries, const Sizes& sizes, const Meeting& meeting, float* out) {
  multiply_pairs({.a = {.data = keys + meeting.first_key * sizes.depth, .row_stride = sizes.depth, .step = 1},
                  .b = queries + meeting.begin,
                  .b_stride = kQueries,
                  .c = out + meeting.begin,
                  .c_stride = kQueries,
                  .rows = meeting.keys,
                  .columns = meeting.columns,
                  .pairs = sizes.depth});
}

// Sums over keys for each query: [queries][width] (+)= coefficients^T values, both with two keys side by side.
void add_over_keys(const BfPair* coefficients, const BfPair* values, const Sizes& sizes, const Meeting& meeting,
                   float* out) {
  multiply_pairs({.a = {.data = coefficients + meeting.begin, .row_stride = 1, .step = kQueries},
                  .b = values + meeting.first_key * sizes.depth,
                  .b_stride = sizes.width,
                  .c = out + meeting.begin * sizes.width,
                  .c_stride = sizes.width,
                  .rows = meeting.rows,
                  .columns = sizes.width,
                  .pairs = (meeting.keys + 1) / 2,
                  .adds = meeting.first_key > 0});
}

// Sums over queries for each key: [keys][width] += coefficients queries, of two queries side by side.
void add_over_queries(const Bf16* coefficients, const BfPair* queries, const Sizes& sizes, const Meeting& meeting,
                      float* out) {
  multiply_pairs({.a = {.data = reinterpret_cast<const BfPair*>(coefficients + meeting.begin),
                        .row_stride = kQueries / 2,
                        .step = 1},
                  .b = queries + meeting.begin / 2 * sizes.width,
                  .b_stride = sizes.width,
                  .c = out + meeting.first_key * sizes.width,
                  .c_stride = sizes.width,
                  .rows = meeting.keys,
                  .columns = sizes.width,
                  .pairs = meeting.columns / 2,
                  .adds = true,
                  .adds_to_memory = true});
}

struct ForwardScratch {
  BfPair *keys, *values, *queries, *probs;
  float *out, *scores, *maxima, *sums, *factors;
};

// Scores of a vector of queries, scaled; -infinity where the key is later.
template <bool kSeesAll>
EXPERTMESH_AVX512_TARGET EXPERTMESH_INLINE __m512 score_at(const float* scores, const Meeting& meeting, int64_t r,
                                                           int64_t column, __m512 scale) {
  const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(scores + r * kQueries + column), scale);
  if constexpr (kSeesAll) return s;
  return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), meeting.visible(r, column), s);
}

// P of a meeting, two keys side by side, with the running maximum and sum; factors of what was summed up before.
// Whether any of them is not 1.
template <bool kSeesAll>
EXPERTMESH_AVX512_TARGET bool soften(const ForwardScratch& s, const Meeting& meeting, float scale) {
  const __m512 scales = _mm512_set1_ps(scale);
  __mmask16 changed = 0;
  for (int64_t column = meeting.begin; column < meeting.begin + meeting.columns; column += kLanes) {
    const __m512 old = _mm512_loadu_ps(s.maxima + column);
    __m512 most[2] = {old, old};
    for (int64_t r = 0; r < meeting.keys; ++r) {
      most[r % 2] = _mm512_max_ps(score_at<kSeesAll>(s.scores, meeting, r, column, scales), most[r % 2]);
    }
    const __m512 maximum = _mm512_max_ps(most[0], most[1]);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t r = 0; r < meeting.keys; r += 2) {
      const __m512 low =
          exp_of_negative(_mm512_sub_ps(score_at<kSeesAll>(s.scores, meeting, r, column, scales), maximum));
      __m512 high = _mm512_setzero_ps();
      if (r + 1 < meeting.keys) {
        high = exp_of_negative(_mm512_sub_ps(score_at<kSeesAll>(s.scores, meeting, r + 1, column, scales), maximum));
      }
      sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
      _mm512_storeu_si512(s.probs + r / 2 * kQueries + column, pair_up(round_to_bf16(low), round_to_bf16(high)));
    }
    const __m512 factor = exp_of_negative(_mm512_sub_ps(old, maximum));
    changed |= _mm512_cmp_ps_mask(factor, _mm512_set1_ps(1.0F), _CMP_NEQ_UQ);
    _mm512_storeu_ps(s.factors + column, factor);
    _mm512_storeu_ps(s.maxima + column, maximum);
    _mm512_storeu_ps(s.sums + column, _mm512_fmadd_ps(_mm512_loadu_ps(s.sums + column), factor, sum));
  }
  return changed != 0;
}

// One block of queries of one head against the keys up to it.
void forward_block(const ForwardScratch& s, const Sizes& sizes, int64_t first_query, float scale) {
  std::fill_n(s.maxima, kQueries, -__builtin_inff());
  std::fill_n(s.sums, kQueries, 0.0F);
  for (int64_t b = 0; b < num_key_blocks(sizes, first_query); ++b) {
    const Meeting meeting(sizes, first_query, b);
    multiply_keys(s.keys, s.queries, sizes, meeting, s.scores);
    const bool changes = meeting.sees_all() ? soften<true>(s, meeting, scale) : soften<false>(s, meeting, scale);
    if (changes && b > 0) scale_rows(s.factors, meeting.begin, meeting.rows, sizes, s.out);
    add_over_keys(s.probs, s.values, sizes, meeting, s.out);
  }
}

// Hands out pieces of a unit's scratch memory, each from a cache line's border on.
class Pieces {
 public:
  explicit Pieces(float* memory) : next_(memory) {}
  template <typename T = float>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += round_up(count, kLanes);
    return piece;
  }

 private:
  float* next_;
};

struct BackwardScratch {
  BfPair *keys, *key_pairs, *values;
  float *grad_keys, *grad_values;
  BfPair *queries, *query_pairs, *grad_out, *grad_out_pairs, *grad_score_pairs;
  float *grad_queries, *scores, *grad_scores, *logsumexp, *delta;
  Bf16 *probs, *grad_score_rows;
};

// P and dS of two keys for a vector of queries; `second` may be missing.
template <bool kSeesAll>
EXPERTMESH_AVX512_TARGET void soften_gradient(const BackwardScratch& s, const Meeting& meeting, float scale) {
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t column = meeting.begin; column < meeting.begin + meeting.columns; column += kLanes) {
    const __m512 logsumexp = _mm512_loadu_ps(s.logsumexp + column), delta = _mm512_loadu_ps(s.delta + column);
    for (int64_t r = 0; r < meeting.keys; r += 2) {
      __m256i rounded[2] = {};
      for (int64_t i = 0; i < 2 && r + i < meeting.keys; ++i) {
        const int64_t at = (r + i) * kQueries + column;
        const __m512 p =
            exp_of_negative(_mm512_sub_ps(score_at<kSeesAll>(s.scores, meeting, r + i, column, scales), logsumexp));
        const __m512 ds =
            _mm512_mul_ps(_mm512_mul_ps(p, scales), _mm512_sub_ps(_mm512_loadu_ps(s.grad_scores + at), delta));
        rounded[i] = round_to_bf16(ds);
        store_half(s.probs + at, round_to_bf16(p));
        store_half(s.grad_score_rows + at, rounded[i]);
      }
      _mm512_storeu_si512(s.grad_score_pairs + r / 2 * kQueries + column, pair_up(rounded[0], rounded[1]));
    }
  }
}

void backward_block(const BackwardScratch& s, const Sizes& sizes, int64_t first_query, float scale) {
  for (int64_t b = 0; b < num_key_blocks(sizes, first_query); ++b) {
    const Meeting meeting(sizes, first_query, b);
    multiply_keys(s.keys, s.queries, sizes, meeting, s.scores);
    multiply_keys(s.values, s.grad_out, sizes, meeting, s.grad_scores);
    if (meeting.sees_all()) {
      soften_gradient<true>(s, meeting, scale);
    } else {
      soften_gradient<false>(s, meeting, scale);
    }
    add_over_queries(s.probs, s.grad_out_pairs, sizes, meeting, s.grad_values);
    add_over_queries(s.grad_score_rows, s.query_pairs, sizes, meeting, s.grad_keys);
    add_over_keys(s.grad_score_pairs, s.key_pairs, sizes, meeting, s.grad_queries);
  }
}

// logsumexp and <dO, O> of a block's queries.
EXPERTMESH_AVX512_TARGET void load_row_sums(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                                            int64_t token, int64_t head, int64_t rows, const BackwardScratch& s) {
  std::fill_n(s.logsumexp, kQueries, __builtin_inff());
  std::fill_n(s.delta, kQueries, 0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = (token + r) * shape.heads + head;
    const Bf16 *out = tensors.out + row * shape.head_dim, *grad = tensors.grad_out + row * shape.head_dim;
    Vec dots = splat(0.0F);
    for (int64_t i = 0; i < shape.head_dim; i += kLanes) {
      const int64_t lanes = lanes_at(i, shape.head_dim);
      dots += load(out + i, lanes) * load(grad + i, lanes);
    }
    s.delta[r] = sum(dots);
    s.logsumexp[r] = tensors.logsumexp[row];
  }
}

ForwardScratch forward_scratch(const Sizes& sizes, float* memory) {
  Pieces pieces(memory);
  ForwardScratch s{};
  s.keys = pieces.take<BfPair>(sizes.key_rows());
  s.values = pieces.take<BfPair>(sizes.key_rows());
  s.queries = pieces.take<BfPair>(sizes.query_block());
  s.probs = pieces.take<BfPair>(kKeys / 2 * kQueries);
  s.out = pieces.take(kQueries * sizes.width);
  s.scores = pieces.take(kKeys * kQueries);
  s.maxima = pieces.take(kQueries);
  s.sums = pieces.take(kQueries);
  s.factors = pieces.take(kQueries);
  return s;
}

BackwardScratch backward_scratch(const Sizes& sizes, float* memory) {
  Pieces pieces(memory);
  BackwardScratch s{};
  s.keys = pieces.take<BfPair>(sizes.key_rows());
  s.key_pairs = pieces.take<BfPair>(sizes.key_rows());
  s.values = pieces.take<BfPair>(sizes.key_rows());
  s.grad_keys = pieces.take(sizes.padded * sizes.width);
  s.grad_values = pieces.take(sizes.padded * sizes.width);
  s.queries = pieces.take<BfPair>(sizes.query_block());
  s.query_pairs = pieces.take<BfPair>(sizes.query_block());
  s.grad_out = pieces.take<BfPair>(sizes.query_block());
  s.grad_out_pairs = pieces.take<BfPair>(sizes.query_block());
  s.grad_score_pairs = pieces.take<BfPair>(kKeys / 2 * kQueries);
  s.grad_queries = pieces.take(kQueries * sizes.width);
  s.scores = pieces.take(kKeys * kQueries);
  s.grad_scores = pieces.take(kKeys * kQueries);
  s.logsumexp = pieces.take(kQueries);
  s.delta = pieces.take(kQueries);
  s.probs = reinterpret_cast<Bf16*>(pieces.take(kKeys * kQueries / 2));
  s.grad_score_rows = reinterpret_cast<Bf16*>(pieces.take(kKeys * kQueries / 2));
  return s;
}

// body(head, first, rows, offset) for each block of queries of each head that reads the unit's keys: its rows of the
// document from `first` on begin at `offset` in q, out and their gradients.
template <typename Body>
void for_each_query_block(const AttentionShape& shape, const AttentionUnit& unit, const Sizes& sizes,
                          const Body& body) {
  const int64_t repeat = shape.heads / shape.kv_heads;
  for (int64_t head = unit.kv_head * repeat; head < (unit.kv_head + 1) * repeat; ++head) {
    for (int64_t first = 0; first < sizes.length; first += kQueries) {
      const int64_t offset = ((unit.begin + first) * shape.heads + head) * sizes.dim;
      body(head, first, std::min(kQueries, sizes.length - first), offset);
    }
  }
}

}  // namespace

int64_t attention_pairs_scratch_size(const AttentionShape& shape, int64_t length) {
  const Sizes sizes(shape, length);
  const int64_t keys = 3 * sizes.key_rows() + 2 * sizes.padded * sizes.width;
  const int64_t queries = 4 * sizes.query_block() + kQueries * sizes.width;
  return keys + queries + 4 * kKeys * kQueries + 3 * kQueries;
}

void attention_pairs_forward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                             const AttentionUnit& unit, float* scratch) {
  const FlushSubnormals flush;
  const AmxScope tiles;
  const Sizes sizes(shape, unit.end - unit.begin);
  const ForwardScratch s = forward_scratch(sizes, scratch);
  const int64_t key_stride = shape.kv_heads * sizes.dim, query_stride = shape.heads * sizes.dim;
  const int64_t key_offset = unit.begin * key_stride + unit.kv_head * sizes.dim;
  copy_rows(tensors.k + key_offset, key_stride, sizes.length, sizes, s.keys);
  pack_pairs(tensors.v + key_offset, key_stride, sizes.dim, sizes.length, s.values, sizes.width, sizes.padded / 2);

  for_each_query_block(shape, unit, sizes, [&](int64_t head, int64_t first, int64_t rows, int64_t offset) {
    pack_pairs_transposed(tensors.q + offset, query_stride, rows, sizes.dim, s.queries, kQueries, sizes.depth);
    forward_block(s, sizes, first, shape.scale);
    for (int64_t r = 0; r < rows; ++r) {
      s.factors[r] = 1.0F / s.sums[r];
      tensors.logsumexp[(unit.begin + first + r) * shape.heads + head] = s.maxima[r] + std::log(s.sums[r]);
    }
    scale_rows(s.factors, 0, rows, sizes, s.out);
    store_rows(s.out, rows, sizes, tensors.out + offset, query_stride);
  });
}

void attention_pairs_backward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                              const AttentionUnit& unit, float* scratch) {
  const FlushSubnormals flush;
  const AmxScope tiles;
  const Sizes sizes(shape, unit.end - unit.begin);
  const BackwardScratch s = backward_scratch(sizes, scratch);
  const int64_t key_stride = shape.kv_heads * sizes.dim, query_stride = shape.heads * sizes.dim;
  const int64_t key_offset = unit.begin * key_stride + unit.kv_head * sizes.dim;
  copy_rows(tensors.k + key_offset, key_stride, sizes.length, sizes, s.keys);
  copy_rows(tensors.v + key_offset, key_stride, sizes.length, sizes, s.values);
  pack_pairs(tensors.k + key_offset, key_stride, sizes.dim, sizes.length, s.key_pairs, sizes.width, sizes.padded / 2);
  std::fill_n(s.grad_keys, sizes.padded * sizes.width, 0.0F);
  std::fill_n(s.grad_values, sizes.padded * sizes.width, 0.0F);

  for_each_query_block(shape, unit, sizes, [&](int64_t head, int64_t first, int64_t rows, int64_t offset) {
    const Bf16 *q = tensors.q + offset, *grad_out = tensors.grad_out + offset;
    pack_pairs_transposed(q, query_stride, rows, sizes.dim, s.queries, kQueries, sizes.depth);
    pack_pairs(q, query_stride, sizes.dim, rows, s.query_pairs, sizes.width, kQueries / 2);
    pack_pairs_transposed(grad_out, query_stride, rows, sizes.dim, s.grad_out, kQueries, sizes.depth);
    pack_pairs(grad_out, query_stride, sizes.dim, rows, s.grad_out_pairs, sizes.width, kQueries / 2);
    load_row_sums(tensors, shape, unit.begin + first, head, rows, s);
    backward_block(s, sizes, first, shape.scale);
    store_rows(s.grad_queries, rows, sizes, tensors.grad_q + offset, query_stride);
  });
  store_rows(s.grad_keys, sizes.length, sizes, tensors.grad_k + key_offset, key_stride);
  store_rows(s.grad_values, sizes.length, sizes, tensors.grad_v + key_offset, key_stride);
}

}  // namespace expertmesh::ops::cpu
