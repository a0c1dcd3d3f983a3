// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward of a chunk share. A chunk's rows are tokens, padded with zeros to sixteen; a padded
// token has no key, no value, beta 0 and decay 1, so it changes nothing. With f_i the decay from the chunk's start to
// token i and W_ij that from token j to i >= j, and N the negated mixing of the tokens,
//   N = -beta_i (K K^T)_ij W_ij below the diagonal     A = (Q K^T)_ij W_ij up to the diagonal
//   (I - N) X = beta (V - f (K S))                     out = f (Q S) + A X
//   S <- total S + (to_end K)^T X                      total, to_end_i: decay to the chunk's end from its start, from i
// W is built by products of decays and not as e^(sum_i - sum_j): a strong decay between weak ones then costs no digits.
// No torch.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/cpu/gated_delta.h"
#include "ops/cpu/tile_product.h"
#include "ops/cpu/tile_rows.h"

namespace expertmesh::ops::cpu {

// Rows and strides of the tiles, in floats.
struct DeltaLayout {
  int64_t key_dim, value_dim;  // as given
  int64_t keys, values;        // padded to sixteen
  int64_t key_row, value_row;  // strides of rows with them
  int64_t chunk, token_row;    // tokens of a chunk, stride of rows of tokens
  int64_t heads_of_key;        // value heads of a key head

  EXPERTMESH_INLINE explicit DeltaLayout(const GatedDeltaShape& shape)
      : key_dim(shape.key_dim),
        value_dim(shape.value_dim),
        keys(round_up(shape.key_dim, kLanes)),
        values(round_up(shape.value_dim, kLanes)),
        key_row(keys + kTilePadding),
        value_row(values + kTilePadding),
        chunk(shape.chunk_size),
        token_row(shape.chunk_size + kTilePadding),
        heads_of_key(shape.value_heads / shape.key_heads) {}

  EXPERTMESH_INLINE int64_t state() const { return keys * value_row; }
  EXPERTMESH_INLINE int64_t state_elements() const { return key_dim * value_dim; }
};

// Hands out pieces of the scratch memory; counts them where there is none.
struct Carver {
  float* next = nullptr;
  int64_t taken = 0;

  EXPERTMESH_INLINE float* take(int64_t rows, int64_t stride) {
    float* piece = next == nullptr ? nullptr : next + taken;
    taken += rows * stride;
    return piece;
  }
};

using Quad = float __attribute__((vector_size(16)));

EXPERTMESH_INLINE Quad load_quad(const float* p) {
  Quad q;
  std::memcpy(&q, p, sizeof q);
  return q;
}

EXPERTMESH_INLINE void store_quad(float* p, Quad q) { std::memcpy(p, &q, sizeof q); }

// rows and cols are multiples of four.
EXPERTMESH_INLINE void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                                 int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < cols; c += 4) {
      const float* at = from + r * from_stride + c;
      const Quad a = load_quad(at), b = load_quad(at + from_stride);
      const Quad d = load_quad(at + 2 * from_stride), e = load_quad(at + 3 * from_stride);
      const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Quad de_low = __builtin_shufflevector(d, e, 0, 4, 1, 5),
                 de_high = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      float* out = to + c * to_stride + r;
      store_quad(out, __builtin_shufflevector(ab_low, de_low, 0, 1, 4, 5));
      store_quad(out + to_stride, __builtin_shufflevector(ab_low, de_low, 2, 3, 6, 7));
      store_quad(out + 2 * to_stride, __builtin_shufflevector(ab_high, de_high, 0, 1, 4, 5));
      store_quad(out + 3 * to_stride, __builtin_shufflevector(ab_high, de_high, 2, 3, 6, 7));
    }
  }
}

EXPERTMESH_INLINE float dot(const float* a, const float* b, int64_t cols) {
  Vec sums = splat(0.0F);
  for (int64_t i = 0; i < cols; i += kLanes) sums += load(a + i) * load(b + i);
  return sum(sums);
}

EXPERTMESH_INLINE void scale_rows(float* rows, int64_t stride, int64_t num_rows, int64_t cols, const float* factors) {
  for (int64_t r = 0; r < num_rows; ++r) scale_row(rows + r * stride, cols, factors[r]);
}

// Rows divided by their length, times `scale`; inverse_length is kept for the backward.
EXPERTMESH_INLINE void make_unit_rows(float* rows, int64_t stride, int64_t num_rows, int64_t cols, float scale,
                                      float* inverse_length) {
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = rows + r * stride;
    inverse_length[r] = 1.0F / std::sqrt(dot(row, row, cols) + 1e-6F);
    scale_row(row, cols, inverse_length[r] * scale);
  }
}

// The tokens of a chunk: [begin, begin + rows) of the batch, padded_rows in the tiles.
struct DeltaChunk {
  int64_t begin, rows, padded_rows;
};

EXPERTMESH_INLINE DeltaChunk chunk_at(const GatedDeltaUnit& unit, int64_t index, int64_t chunk_size) {
  const int64_t begin = unit.begin + index * chunk_size;
  const int64_t rows = std::min(chunk_size, unit.end - begin);
  return {begin, rows, round_up(rows, kLanes)};
}

// What all value heads of a key head share in a chunk.
struct DeltaKeys {
  float *q, *k;            // [chunk][key_row], of unit length, q divided by sqrt(D)
  float* keys_transposed;  // [keys][token_row]
  float *kk, *qk;          // [chunk][token_row]: K K^T and Q K^T in blocks of sixteen up to the diagonal
  float q_inverse[kMaxDeltaChunk], k_inverse[kMaxDeltaChunk];

  EXPERTMESH_INLINE void carve(Carver& carver, const DeltaLayout& layout) {
    q = carver.take(layout.chunk, layout.key_row);
    k = carver.take(layout.chunk, layout.key_row);
    keys_transposed = carver.take(layout.keys, layout.token_row);
    kk = carver.take(layout.chunk, layout.token_row);
    qk = carver.take(layout.chunk, layout.token_row);
  }
};

// out [rows, rows] += left right^T in blocks of sixteen up to the diagonal; right_transposed is [depth][token_row].
EXPERTMESH_INLINE void add_lower_product(const float* left, int64_t left_stride, const float* right_transposed,
                                         int64_t token_row, int64_t rows, int64_t depth, float* out) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    multiply_add({left + r * left_stride, left_stride, 1}, right_transposed, token_row, out + r * token_row, token_row,
                 kLanes, r + kLanes, depth);
  }
}

// to [rows, cols] += lower right, where `lower` is zero past its diagonal.
EXPERTMESH_INLINE void add_lower_times(const float* lower, int64_t token_row, const float* right, float* to,
                                       int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    multiply_add({lower + r * token_row, token_row, 1}, right, stride, to + r * stride, stride, kLanes, cols,
                 r + kLanes);
  }
}

// to [rows, cols] += lower^T right.
EXPERTMESH_INLINE void add_lower_transposed_times(const float* lower, int64_t token_row, const float* right, float* to,
                                                  int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    multiply_add({lower + r * token_row + r, 1, token_row}, right + r * stride, stride, to + r * stride, stride, kLanes,
                 cols, rows - r);
  }
}

template <typename T>
EXPERTMESH_INLINE void load_keys(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                 const DeltaLayout& layout, const DeltaChunk& chunk, int64_t key_head, DeltaKeys& to) {
  const int64_t column = key_head * layout.key_dim, rows = chunk.padded_rows;
  load_tile(tensors.q + chunk.begin * shape.q_stride + column, shape.q_stride, chunk.rows, layout.key_dim, to.q,
            layout.key_row, rows);
  load_tile(tensors.k + chunk.begin * shape.k_stride + column, shape.k_stride, chunk.rows, layout.key_dim, to.k,
            layout.key_row, rows);
  const float scale = 1.0F / std::sqrt(static_cast<float>(layout.key_dim));
  make_unit_rows(to.q, layout.key_row, rows, layout.keys, scale, to.q_inverse);
  make_unit_rows(to.k, layout.key_row, rows, layout.keys, 1.0F, to.k_inverse);
  transpose(to.k, layout.key_row, rows, layout.keys, to.keys_transposed, layout.token_row);
  zero_rows(to.kk, rows, layout.token_row);
  zero_rows(to.qk, rows, layout.token_row);
  add_lower_product(to.k, layout.key_row, to.keys_transposed, layout.token_row, rows, layout.keys, to.kk);
  add_lower_product(to.q, layout.key_row, to.keys_transposed, layout.token_row, rows, layout.keys, to.qk);
}

// Decays and betas of a chunk's tokens for one value head.
struct DeltaGates {
  float decay[kMaxDeltaChunk], beta[kMaxDeltaChunk], from_start[kMaxDeltaChunk], to_end[kMaxDeltaChunk];
  float total;
};

// No subnormal numbers: they are slow, and nothing is left of them anyway.
EXPERTMESH_INLINE float flushed(float x) { return x > 1e-37F ? x : 0.0F; }

EXPERTMESH_INLINE void load_gates(const float* g, const float* beta, int64_t value_heads, const DeltaChunk& chunk,
                                  DeltaGates& to) {
  for (int64_t i = 0; i < chunk.padded_rows; ++i) {
    to.decay[i] = i < chunk.rows ? g[i * value_heads] : 0.0F;
    to.beta[i] = i < chunk.rows ? beta[i * value_heads] : 0.0F;
  }
  for (int64_t i = 0; i < chunk.padded_rows; i += kLanes) store(to.decay + i, exp(load(to.decay + i)));
  float product = 1.0F;
  for (int64_t i = 0; i < chunk.padded_rows; ++i) to.from_start[i] = product = flushed(product * to.decay[i]);
  to.total = product;
}

// W, N and A of a value head, zero past the diagonal in their blocks; and gates.to_end.
EXPERTMESH_INLINE void mix_tokens(const DeltaKeys& keys, int64_t token_row, int64_t rows, DeltaGates& gates, float* w,
                                  float* n, float* a) {
  float weights[kMaxDeltaChunk] = {};
  for (int64_t i = 0; i < rows; ++i) {
    const float decay = gates.decay[i], minus_beta = -gates.beta[i];
    const int64_t at = i * token_row;
    for (int64_t c = 0; c <= i; c += kLanes) {
      const Vec decayed = load(weights + c) * decay;
      store(weights + c, decayed > 1e-37F ? decayed : splat(0.0F));
    }
    weights[i] = 1.0F;
    for (int64_t c = 0; c <= i; c += kLanes) {
      const Vec weight = load(weights + c);
      store(w + at + c, weight);
      store(n + at + c, load(keys.kk + at + c) * weight * minus_beta);
      store(a + at + c, load(keys.qk + at + c) * weight);
    }
    n[at + i] = 0.0F;
  }
  for (int64_t i = 0; i < rows; ++i) gates.to_end[i] = weights[i];
}

// x <- (I - N)^-1 x, four rows at a time.
EXPERTMESH_INLINE void solve(const float* n, int64_t token_row, float* x, int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t b = 0; b < rows; b += 4) {
    const float* at = n + b * token_row;
    float* row = x + b * stride;
    if (b > 0) multiply_add({at, token_row, 1}, x, stride, row, stride, 4, cols, b);
    const float *second = at + token_row + b, *third = second + token_row, *fourth = third + token_row;
    for (int64_t i = 0; i < cols; i += kLanes) {
      const Vec x0 = load(row + i);
      const Vec x1 = load(row + stride + i) + x0 * second[0];
      const Vec x2 = load(row + 2 * stride + i) + x0 * third[0] + x1 * third[1];
      store(row + stride + i, x1);
      store(row + 2 * stride + i, x2);
      store(row + 3 * stride + i, load(row + 3 * stride + i) + x0 * fourth[0] + x1 * fourth[1] + x2 * fourth[2]);
    }
  }
}

// x <- (I - N^T)^-1 x.
EXPERTMESH_INLINE void solve_transposed(const float* n, int64_t token_row, float* x, int64_t stride, int64_t rows,
                                        int64_t cols) {
  for (int64_t b = rows - 4; b >= 0; b -= 4) {
    const float* at = n + b * token_row + b;
    float* row = x + b * stride;
    if (b + 4 < rows) {
      multiply_add({at + 4 * token_row, 1, token_row}, row + 4 * stride, stride, row, stride, 4, cols, rows - b - 4);
    }
    const float *second = at + token_row, *third = second + token_row, *fourth = third + token_row;
    for (int64_t i = 0; i < cols; i += kLanes) {
      const Vec x3 = load(row + 3 * stride + i);
      const Vec x2 = load(row + 2 * stride + i) + x3 * fourth[2];
      const Vec x1 = load(row + stride + i) + x3 * fourth[1] + x2 * third[1];
      store(row + 2 * stride + i, x2);
      store(row + stride + i, x1);
      store(row + i, load(row + i) + x3 * fourth[0] + x2 * third[0] + x1 * second[0]);
    }
  }
}

// x = beta (V - f (K S)) from x = V and reads = K S; `reads` null: no state.
EXPERTMESH_INLINE void make_right_side(const DeltaGates& gates, const float* values, const float* reads, float* x,
                                       int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t at = r * stride + i;
      const Vec v = load(values + at);
      store(x + at, (reads == nullptr ? v : v - load(reads + at) * gates.from_start[r]) * gates.beta[r]);
    }
  }
}

}  // namespace expertmesh::ops::cpu
