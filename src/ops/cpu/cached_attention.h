// SPDX-License-Identifier: Apache-2.0
// Attention of a document's new tokens against the keys and values of all its tokens: one key/value head with its query
// heads, fp32 inside. The rows of queries and the keys are cut into pieces, which are independent: callers spread them
// over threads, then merge the pieces of each row. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/split_rows.h"
#include "ops/cpu/tile_product.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kCachedPieceRows = 64;   // at most
constexpr int64_t kMostCachedPieces = 32;  // of the keys of a row

struct CachedAttentionShape {
  int64_t repeat = 1;  // query heads of a key/value head
  int64_t head_dim = 0;
  int64_t token_stride = 0;  // elements of q and out from a token to the next
  float scale = 1.0F;
};

// Row r is query head r % repeat of new token r / repeat; token i of n sees the first length - n + i + 1 keys.
template <typename T>
struct CachedHead {
  const T* q = nullptr;  // of the first token and query head, as out
  const T* k = nullptr;  // [length, head_dim], as v
  const T* v = nullptr;
  T* out = nullptr;
  int64_t tokens = 0;
  int64_t length = 0;
};

struct CachedPiece {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_key = 0;
  int64_t keys = 0;
};

// What a piece leaves of a row, in floats: a sum of values, the largest score, the sum of weights.
constexpr int64_t cached_partial_size(int64_t head_dim) { return round_up(head_dim, kSplit) + kLanes; }

// Floats of scratch memory, on a cache line's border, that a piece needs.
int64_t cached_attention_scratch(const CachedAttentionShape& shape);

// Writes the piece's rows of `partials`, one after the other.
void cached_attention_piece(const CachedHead<float>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                            float* partials, float* scratch);
void cached_attention_piece(const CachedHead<Bf16>& head, const CachedAttentionShape& shape, const CachedPiece& piece,
                            float* partials, float* scratch);

// Writes out[r] for r < rows from the partials of its pieces: row r of piece p is at partials + p * piece_stride +
// r * cached_partial_size.
void merge_cached_pieces(const CachedHead<float>& head, const CachedAttentionShape& shape, int64_t rows,
                         const float* partials, int64_t pieces, int64_t piece_stride);
void merge_cached_pieces(const CachedHead<Bf16>& head, const CachedAttentionShape& shape, int64_t rows,
                         const float* partials, int64_t pieces, int64_t piece_stride);

}  // namespace expertmesh::ops::cpu
