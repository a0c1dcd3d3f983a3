// SPDX-License-Identifier: Apache-2.0
// A unit packs its keys and values once, as fp32 with padded columns: row-major, and as blocks of 64 keys transposed
// ([head_dim][64]), so that every product reads its right side along contiguous columns (tile_product.h). Then, for
// each query head and block of 64 queries, it walks the blocks of keys up to the diagonal.
//   forward   S = Q K^T; running maximum and sum; O = O e^(old - new) + P V
//   backward  P = e^(S - logsumexp); dP = dO V^T; dS = P (dP - <dO, O>); dV += P^T dO; dK += dS^T Q; dQ += dS K
// Rows past the end of the document are zero with a logsumexp of infinity: their P is 0.
// Tensors in bf16 go to attention_pairs.h where the processor has AVX-512.
#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/attention_pairs.h"
#include "ops/cpu/pair_product.h"
#include "ops/cpu/running_softmax.h"
#include "ops/cpu/tile_product.h"
#include "ops/cpu/tile_rows.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kTileSize = kBlock * kBlock;

// Sizes of a unit, in floats, and its place in the tensors.
struct Layout {
  int64_t length, dim, padded_dim, blocks, padded_length;

  EXPERTMESH_INLINE Layout(const AttentionShape& shape, int64_t tokens)
      : length(tokens),
        dim(shape.head_dim),
        padded_dim(round_up(shape.head_dim, kLanes)),
        blocks((tokens + kBlock - 1) / kBlock),
        padded_length(blocks * kBlock) {}

  EXPERTMESH_INLINE int64_t matrix() const { return padded_length * padded_dim; }
  EXPERTMESH_INLINE int64_t block() const { return kBlock * padded_dim; }
  EXPERTMESH_INLINE int64_t rows_of(int64_t index) const { return std::min(kBlock, length - index * kBlock); }
};

// `size` is a multiple of 16.
EXPERTMESH_INLINE void fill(float* to, int64_t size, float value) {
  for (int64_t i = 0; i < size; i += kLanes) store(to + i, splat(value));
}

// `rows` rows of [.., dim] with `stride` between them, as fp32 with padded columns; rows up to a block are zero.
template <typename T>
EXPERTMESH_INLINE void unpack_rows(const T* from, int64_t stride, int64_t rows, const Layout& layout, float* to) {
  for (int64_t r = 0; r < kBlock; ++r, from += stride, to += layout.padded_dim) {
    for (int64_t i = 0; i < layout.padded_dim; i += kLanes) {
      store(to + i, r < rows ? load(from + i, lanes_at(i, layout.dim)) : splat(0.0F));
    }
  }
}

template <typename T>
EXPERTMESH_INLINE void pack_rows(const float* from, int64_t rows, const Layout& layout, T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, from += layout.padded_dim, to += stride) {
    for (int64_t i = 0; i < layout.dim; i += kLanes) store(to + i, load(from + i), lanes_at(i, layout.dim));
  }
}

// A block [64][padded_dim] as [padded_dim][64].
EXPERTMESH_INLINE void transpose_block(const float* from, const Layout& layout, float* to) {
  for (int64_t d = 0; d < layout.padded_dim; ++d) {
    for (int64_t r = 0; r < kBlock; ++r) to[d * kBlock + r] = from[r * layout.padded_dim + d];
  }
}

// All blocks of the unit's keys or values; `transposed` may be null, and `rows` only a block long when !keeps_rows.
template <typename T>
EXPERTMESH_INLINE void pack_keys(const T* from, int64_t stride, const Layout& layout, float* rows, bool keeps_rows,
                                 float* transposed) {
  for (int64_t b = 0; b < layout.blocks; ++b) {
    float* block = keeps_rows ? rows + b * layout.block() : rows;
    unpack_rows(from + b * kBlock * stride, stride, layout.rows_of(b), layout, block);
    if (transposed != nullptr) transpose_block(block, layout, transposed + b * layout.block());
  }
}

// Scores of a block of queries and one of keys: [64][64], `cols` of them real.
EXPERTMESH_INLINE void score_tile(const float* queries, const float* keys_transposed, const Layout& layout,
                                  int64_t rows, int64_t cols, float* scores) {
  fill(scores, rows * kBlock, 0.0F);
  multiply_add({queries, layout.padded_dim, 1}, keys_transposed, kBlock, scores, kBlock, rows, cols, layout.dim);
}

struct RunningSoftmax {
  float max[kBlock];
  float sum[kBlock];
};

struct ForwardScratch {
  float *values, *keys_transposed, *queries, *out, *scores;
};

// One block of queries of one head against the keys up to it.
EXPERTMESH_INLINE void forward_block(const ForwardScratch& s, const Layout& layout, int64_t index, float scale,
                                     RunningSoftmax& softmax) {
  const int64_t real_rows = layout.rows_of(index), rows = round_up(real_rows, kTileRows);
  fill(s.out, layout.block(), 0.0F);
  fill(softmax.max, kBlock, -__builtin_inff());
  fill(softmax.sum, kBlock, 0.0F);
  for (int64_t k = 0; k <= index; ++k) {
    const int64_t cols = round_up(layout.rows_of(k), kLanes);
    score_tile(s.queries, s.keys_transposed + k * layout.block(), layout, rows, cols, s.scores);
    for (int64_t r = 0; r < real_rows; ++r) {
      const int64_t visible = k < index ? kBlock : r + 1;
      const float factor = soften_row(s.scores + r * kBlock, cols, visible, scale, softmax.max[r], softmax.sum[r]);
      if (factor != 1.0F) scale_row(s.out + r * layout.padded_dim, layout.padded_dim, factor);
    }
    fill(s.scores + real_rows * kBlock, (rows - real_rows) * kBlock, 0.0F);
    multiply_add({s.scores, kBlock, 1}, s.values + k * layout.block(), layout.padded_dim, s.out, layout.padded_dim,
                 rows, layout.padded_dim, layout.rows_of(k));
  }
}

template <typename T>
EXPERTMESH_INLINE void forward_unit(const AttentionTensors<T>& tensors, const AttentionShape& shape,
                                    const AttentionUnit& unit, float* scratch) {
  const Layout layout(shape, unit.end - unit.begin);
  ForwardScratch s{};
  s.values = scratch;
  s.keys_transposed = s.values + layout.matrix();
  s.queries = s.keys_transposed + layout.matrix();
  s.out = s.queries + layout.block();
  s.scores = s.out + layout.block();
  const int64_t key_stride = shape.kv_heads * layout.dim, query_stride = shape.heads * layout.dim;
  const int64_t key_offset = unit.begin * key_stride + unit.kv_head * layout.dim;
  pack_keys(tensors.k + key_offset, key_stride, layout, s.queries, false, s.keys_transposed);
  pack_keys(tensors.v + key_offset, key_stride, layout, s.values, true, nullptr);

  RunningSoftmax softmax;
  const int64_t repeat = shape.heads / shape.kv_heads;
  for (int64_t head = unit.kv_head * repeat; head < (unit.kv_head + 1) * repeat; ++head) {
    for (int64_t b = 0; b < layout.blocks; ++b) {
      const int64_t token = unit.begin + b * kBlock, offset = token * query_stride + head * layout.dim;
      const int64_t rows = layout.rows_of(b);
      unpack_rows(tensors.q + offset, query_stride, rows, layout, s.queries);
      forward_block(s, layout, b, shape.scale, softmax);
      for (int64_t r = 0; r < rows; ++r) {
        scale_row(s.out + r * layout.padded_dim, layout.padded_dim, 1.0F / softmax.sum[r]);
        tensors.logsumexp[(token + r) * shape.heads + head] = softmax.max[r] + std::log(softmax.sum[r]);
      }
      pack_rows(s.out, rows, layout, tensors.out + offset, query_stride);
    }
  }
}

struct BackwardScratch {
  float *keys, *keys_transposed, *values_transposed, *grad_keys, *grad_values;
  float *queries, *grad_out, *grad_queries, *probs, *grad_scores;
  float logsumexp[kBlock], delta[kBlock];
};

// P and dS of a tile from its scores (in probs) and dP (in grad_scores).
EXPERTMESH_INLINE void soften_gradient(BackwardScratch& s, int64_t rows, int64_t cols, bool is_diagonal, float scale) {
  for (int64_t r = 0; r < rows; ++r) {
    float *p = s.probs + r * kBlock, *ds = s.grad_scores + r * kBlock;
    const int64_t visible = is_diagonal ? r + 1 : kBlock;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const Vec prob = exp(visible_scores(p, c, visible, scale) - s.logsumexp[r]);
      store(p + c, prob);
      store(ds + c, prob * (load(ds + c) - s.delta[r]) * scale);
    }
  }
}

EXPERTMESH_INLINE void backward_block(BackwardScratch& s, const Layout& layout, int64_t index, float scale) {
  const int64_t dim = layout.padded_dim;
  const int64_t rows = round_up(layout.rows_of(index), kTileRows);
  fill(s.grad_queries, layout.block(), 0.0F);
  for (int64_t k = 0; k <= index; ++k) {
    const int64_t real_cols = layout.rows_of(k), cols = round_up(real_cols, kLanes), at = k * layout.block();
    score_tile(s.queries, s.keys_transposed + at, layout, rows, cols, s.probs);
    score_tile(s.grad_out, s.values_transposed + at, layout, rows, cols, s.grad_scores);
    soften_gradient(s, rows, cols, k == index, scale);
    const int64_t key_rows = round_up(real_cols, kTileRows);
    multiply_add({s.probs, 1, kBlock}, s.grad_out, dim, s.grad_values + at, dim, key_rows, dim, rows);
    multiply_add({s.grad_scores, 1, kBlock}, s.queries, dim, s.grad_keys + at, dim, key_rows, dim, rows);
    multiply_add({s.grad_scores, kBlock, 1}, s.keys + at, dim, s.grad_queries, dim, rows, dim, real_cols);
  }
}

// logsumexp and <dO, O> of a block's rows.
template <typename T>
EXPERTMESH_INLINE void load_row_sums(const AttentionTensors<T>& tensors, const AttentionShape& shape,
                                     const Layout& layout, int64_t token, int64_t head, int64_t rows,
                                     BackwardScratch& s) {
  fill(s.logsumexp, kBlock, __builtin_inff());
  fill(s.delta, kBlock, 0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const T* out = tensors.out + ((token + r) * shape.heads + head) * layout.dim;
    Vec dots = splat(0.0F);
    for (int64_t i = 0; i < layout.dim; i += kLanes) {
      dots += load(out + i, lanes_at(i, layout.dim)) * load(s.grad_out + r * layout.padded_dim + i);
    }
    s.delta[r] = sum(dots);
    s.logsumexp[r] = tensors.logsumexp[(token + r) * shape.heads + head];
  }
}

EXPERTMESH_INLINE BackwardScratch backward_scratch(const Layout& layout, float* scratch) {
  BackwardScratch s{};
  s.keys = scratch;
  s.keys_transposed = s.keys + layout.matrix();
  s.values_transposed = s.keys_transposed + layout.matrix();
  s.grad_keys = s.values_transposed + layout.matrix();
  s.grad_values = s.grad_keys + layout.matrix();
  s.queries = s.grad_values + layout.matrix();
  s.grad_out = s.queries + layout.block();
  s.grad_queries = s.grad_out + layout.block();
  s.probs = s.grad_queries + layout.block();
  s.grad_scores = s.probs + kTileSize;
  return s;
}

template <typename T>
EXPERTMESH_INLINE void backward_unit(const AttentionTensors<T>& tensors, const AttentionShape& shape,
                                     const AttentionUnit& unit, float* scratch) {
  const Layout layout(shape, unit.end - unit.begin);
  BackwardScratch s = backward_scratch(layout, scratch);
  const int64_t key_stride = shape.kv_heads * layout.dim, query_stride = shape.heads * layout.dim;
  const int64_t key_offset = unit.begin * key_stride + unit.kv_head * layout.dim;
  pack_keys(tensors.k + key_offset, key_stride, layout, s.keys, true, s.keys_transposed);
  pack_keys(tensors.v + key_offset, key_stride, layout, s.queries, false, s.values_transposed);
  fill(s.grad_keys, 2 * layout.matrix(), 0.0F);  // and grad_values behind it

  const int64_t repeat = shape.heads / shape.kv_heads;
  for (int64_t head = unit.kv_head * repeat; head < (unit.kv_head + 1) * repeat; ++head) {
    for (int64_t b = 0; b < layout.blocks; ++b) {
      const int64_t token = unit.begin + b * kBlock, offset = token * query_stride + head * layout.dim;
      const int64_t rows = layout.rows_of(b);
      unpack_rows(tensors.q + offset, query_stride, rows, layout, s.queries);
      unpack_rows(tensors.grad_out + offset, query_stride, rows, layout, s.grad_out);
      load_row_sums(tensors, shape, layout, token, head, rows, s);
      backward_block(s, layout, b, shape.scale);
      pack_rows(s.grad_queries, rows, layout, tensors.grad_q + offset, query_stride);
    }
  }
  pack_rows(s.grad_keys, layout.length, layout, tensors.grad_k + key_offset, key_stride);
  pack_rows(s.grad_values, layout.length, layout, tensors.grad_v + key_offset, key_stride);
}

}  // namespace

int64_t attention_scratch_size(const AttentionShape& shape, int64_t length) {
  const Layout layout(shape, length);
  return std::max(5 * layout.matrix() + 3 * layout.block() + 2 * kTileSize,
                  attention_pairs_scratch_size(shape, length));
}

EXPERTMESH_CPU_KERNEL(void, attention_forward,
                      (const AttentionTensors<float>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch),
                      forward_unit, (tensors, shape, unit, scratch))
EXPERTMESH_CPU_KERNEL(void, attention_backward,
                      (const AttentionTensors<float>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch),
                      backward_unit, (tensors, shape, unit, scratch))
namespace {

EXPERTMESH_CPU_KERNEL(void, forward_in_fp32,
                      (const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch),
                      forward_unit, (tensors, shape, unit, scratch))
EXPERTMESH_CPU_KERNEL(void, backward_in_fp32,
                      (const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch),
                      backward_unit, (tensors, shape, unit, scratch))

}  // namespace

void attention_forward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch) {
  (has_pair_products() ? attention_pairs_forward : forward_in_fp32)(tensors, shape, unit, scratch);
}

void attention_backward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                        float* scratch) {
  (has_pair_products() ? attention_pairs_backward : backward_in_fp32)(tensors, shape, unit, scratch);
}

}  // namespace expertmesh::ops::cpu
