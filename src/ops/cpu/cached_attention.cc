// SPDX-License-Identifier: Apache-2.0
// A piece walks its keys in blocks, each read once for all rows: scores straight from the cache (few_rows.h), a running
// softmax, and weights times the block's values, which are widened to fp32 on the way. Rows that see nothing of a piece
// leave a maximum of -infinity, which has no weight among the pieces.
#include "ops/cpu/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/few_rows.h"
#include "ops/cpu/running_softmax.h"
#include "ops/cpu/tile_rows.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kBlock = 64;  // keys

struct Scratch {
  int64_t padded_dim;
  float *queries, *out, *values, *scores, *max, *sum;

  EXPERTMESH_INLINE Scratch(const CachedAttentionShape& shape, float* at)
      : padded_dim(round_up(shape.head_dim, kSplit)),
        queries(at),
        out(queries + kCachedPieceRows * padded_dim),
        values(out + kCachedPieceRows * padded_dim),
        scores(values + kBlock * padded_dim),
        max(scores + kCachedPieceRows * kBlock),
        sum(max + kCachedPieceRows) {}
};

// Of a row's elements in q and out.
EXPERTMESH_INLINE int64_t offset_of(const CachedAttentionShape& shape, int64_t row) {
  return row / shape.repeat * shape.token_stride + row % shape.repeat * shape.head_dim;
}

// Keys that a row sees.
template <typename T>
EXPERTMESH_INLINE int64_t visible_keys(const CachedHead<T>& head, const CachedAttentionShape& shape, int64_t row) {
  return head.length - head.tokens + row / shape.repeat + 1;
}

// The block's values as rows of padded_dim: where they lie, or widened.
template <typename T>
EXPERTMESH_INLINE const float* wide_values(const T* values, int64_t head_dim, int64_t keys, const Scratch& s) {
  if (head_dim < s.padded_dim) {
    for (int64_t j = 0; j < keys; ++j) widen_row(values + j * head_dim, head_dim, s.values + j * s.padded_dim);
    return s.values;
  }
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    widen_row(values, keys * head_dim, s.values);
    return s.values;
  }
}

template <typename T>
EXPERTMESH_INLINE void prefetch_elements(const T* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i);
}

// A block in steps of sixteen keys: while the scores are formed, the block's values come from memory, and while these
// are added up, the next block's keys.
template <typename T>
EXPERTMESH_INLINE void run_block(const CachedHead<T>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                                 int64_t key, int64_t keys, const Scratch& s) {
  const int64_t dim = shape.head_dim;
  for (int64_t j = 0; j < keys; j += kLanes) {
    const int64_t count = std::min(kLanes, keys - j);
    prefetch_elements(head.v + (key + j) * dim, count * dim);
    few_row_product(FewRows<T>{.x = s.queries,
                               .x_stride = s.padded_dim,
                               .rows = piece.rows,
                               .w = head.k + (key + j) * dim,
                               .w_stride = dim,
                               .columns = count,
                               .depth = dim,
                               .y = s.scores + j,
                               .y_stride = kBlock});
  }
  for (int64_t r = 0; r < piece.rows; ++r) {
    float* scores = s.scores + r * kBlock;
    const int64_t visible = std::min(keys, visible_keys(head, shape, piece.first_row + r) - key);
    if (visible <= 0) {
      zero_rows(scores, 1, kBlock);
      continue;
    }
    const float factor = soften_row(scores, round_up(keys, kLanes), visible, shape.scale, s.max[r], s.sum[r]);
    if (factor != 1.0F) scale_row(s.out + r * s.padded_dim, s.padded_dim, factor);
  }
  const int64_t padded_rows = round_up(piece.rows, kTileRows);
  zero_rows(s.scores + piece.rows * kBlock, padded_rows - piece.rows, kBlock);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const int64_t count = std::min(kLanes, keys - j);
    prefetch_elements(head.k + (key + kBlock + j) * dim, count * dim);
    multiply_add({s.scores + j, kBlock, 1}, wide_values(head.v + (key + j) * dim, dim, count, s), s.padded_dim, s.out,
                 s.padded_dim, padded_rows, s.padded_dim, count);
  }
}

template <typename T>
EXPERTMESH_INLINE void run_piece(const CachedHead<T>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                                 float* partials, float* scratch) {
  const Scratch s(shape, scratch);
  for (int64_t r = 0; r < piece.rows; ++r) {
    widen_row(head.q + offset_of(shape, piece.first_row + r), shape.head_dim, s.queries + r * s.padded_dim);
    s.max[r] = -__builtin_inff();
    s.sum[r] = 0.0F;
  }
  zero_rows(s.out, round_up(piece.rows, kTileRows), s.padded_dim);
  const int64_t end =
      std::min(piece.first_key + piece.keys, visible_keys(head, shape, piece.first_row + piece.rows - 1));
  for (int64_t key = piece.first_key; key < end; key += kBlock) {
    run_block(head, shape, piece, key, std::min(kBlock, end - key), s);
  }
  for (int64_t r = 0; r < piece.rows; ++r, partials += cached_partial_size(shape.head_dim)) {
    std::memcpy(partials, s.out + r * s.padded_dim, static_cast<size_t>(s.padded_dim) * sizeof(float));
    partials[s.padded_dim] = s.max[r];
    partials[s.padded_dim + 1] = s.sum[r];
  }
}

template <typename T>
EXPERTMESH_INLINE void merge_row(const float* partials, int64_t pieces, int64_t piece_stride, int64_t head_dim,
                                 T* out) {
  const float* maxima = partials + round_up(head_dim, kSplit);
  float most = maxima[0], total = 0.0F, weights[kMostCachedPieces];
  for (int64_t p = 1; p < pieces; ++p) most = std::max(most, maxima[p * piece_stride]);
  for (int64_t p = 0; p < pieces; ++p) {
    weights[p] = std::exp(maxima[p * piece_stride] - most);
    total += weights[p] * maxima[p * piece_stride + 1];
  }
  const float inverse = 1.0F / total;
  for (int64_t i = 0; i < head_dim; i += kSplit) {
    float sums[kSplit];
    for (int64_t j = 0; j < kSplit; j += kLanes) {
      Vec sum = splat(0.0F);
      for (int64_t p = 0; p < pieces; ++p) sum += load(partials + p * piece_stride + i + j) * weights[p];
      store(sums + j, sum * inverse);
    }
    narrow_row(sums, std::min(kSplit, head_dim - i), out + i);
  }
}

template <typename T>
EXPERTMESH_INLINE void merge_rows(const CachedHead<T>& head, const CachedAttentionShape& shape, int64_t rows,
                                  const float* partials, int64_t pieces, int64_t piece_stride) {
  for (int64_t r = 0; r < rows; ++r, partials += cached_partial_size(shape.head_dim)) {
    merge_row(partials, pieces, piece_stride, shape.head_dim, head.out + offset_of(shape, r));
  }
}

}  // namespace

int64_t cached_attention_scratch(const CachedAttentionShape& shape) {
  const int64_t padded_dim = round_up(shape.head_dim, kSplit);
  return (2 * kCachedPieceRows + kBlock) * padded_dim + kCachedPieceRows * (kBlock + 2);
}

EXPERTMESH_CPU_KERNEL(void, cached_attention_piece,
                      (const CachedHead<float>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                       float* partials, float* scratch),
                      run_piece, (head, shape, piece, partials, scratch))
EXPERTMESH_CPU_KERNEL(void, cached_attention_piece,
                      (const CachedHead<Bf16>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                       float* partials, float* scratch),
                      run_piece, (head, shape, piece, partials, scratch))
EXPERTMESH_CPU_KERNEL(void, merge_cached_pieces,
                      (const CachedHead<float>& head, const CachedAttentionShape& shape, int64_t rows,
                       const float* partials, int64_t pieces, int64_t piece_stride),
                      merge_rows, (head, shape, rows, partials, pieces, piece_stride))
EXPERTMESH_CPU_KERNEL(void, merge_cached_pieces,
                      (const CachedHead<Bf16>& head, const CachedAttentionShape& shape, int64_t rows,
                       const float* partials, int64_t pieces, int64_t piece_stride),
                      merge_rows, (head, shape, rows, partials, pieces, piece_stride))

}  // namespace expertmesh::ops::cpu
