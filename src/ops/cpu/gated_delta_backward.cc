// SPDX-License-Identifier: Apache-2.0
// Chunks in reverse. With dS the gradient of the state after the chunk, of one value head:
//   dX = A^T dO + to_end (K dS)            Y = (I - N)^-T dX        dA = dO X^T       dN = Y X^T
//   dV = beta Y                            Z = -beta f Y            the gradient of K S
//   dQ += (f dO) S^T + (dA W) K            dK += (to_end X) dS^T + Z S^T + (dA W)^T Q + (G + G^T) K, G = -beta dN W
//   dS <- total dS + Q^T (f dO) + K^T Z
// dA W and G are summed over the value heads of the key head before they meet K and Q. A decay's gradient is that of
// its logarithm: each entry of A and N times its gradient counts for the tokens after its column up to its row. What a
// token's decay is no part of never enters its sum, not even to be taken away again: past a strong decay little is
// left, and the gradient is as small.
#include "ops/cpu/gated_delta_tiles.h"

namespace expertmesh::ops::cpu {
namespace {

struct BackwardTiles {
  DeltaKeys keys;
  float *grad_q, *grad_k, *reads_grad;              // [chunk][key_row]
  float *grad_qk, *grad_kk;                         // [chunk][token_row], summed over value heads
  float *w, *n, *a, *grad_a, *grad_n;               // [chunk][token_row]
  float *values, *reads, *x, *grad_out, *y, *work;  // [chunk][value_row]
  float* x_transposed;                              // [values][token_row]
  float* state;                                     // [keys][value_row], before the chunk
  float* state_transposed;                          // [values][key_row]
  float* grad_states;                               // [heads_of_key][keys][value_row]

  EXPERTMESH_INLINE void carve(Carver& carver, const DeltaLayout& layout) {
    keys.carve(carver, layout);
    for (float** tile : {&grad_q, &grad_k, &reads_grad}) *tile = carver.take(layout.chunk, layout.key_row);
    for (float** tile : {&grad_qk, &grad_kk, &w, &n, &a, &grad_a, &grad_n}) {
      *tile = carver.take(layout.chunk, layout.token_row);
    }
    for (float** tile : {&values, &reads, &x, &grad_out, &y, &work}) {
      *tile = carver.take(layout.chunk, layout.value_row);
    }
    x_transposed = carver.take(layout.values, layout.token_row);
    state = carver.take(layout.keys, layout.value_row);
    state_transposed = carver.take(layout.values, layout.key_row);
    grad_states = carver.take(layout.heads_of_key * layout.keys, layout.value_row);
  }
};

// Gradients of the betas, and of the logarithms of decays: over each token from those before it to it and later ones,
// from the start to each token, from each token to the end, and over the whole chunk.
struct GateGradients {
  float beta[kMaxDeltaChunk];
  float log_across[kMaxDeltaChunk], log_from_start[kMaxDeltaChunk], log_to_end[kMaxDeltaChunk];
  float log_total;
};

// From the gradients of A and N to those of Q K^T, K K^T, the decays between tokens and the betas.
EXPERTMESH_INLINE void unmix_tokens(const DeltaGates& gates, int64_t token_row, int64_t rows, BackwardTiles& tiles,
                                    GateGradients& grads) {
  float column_sums[kMaxDeltaChunk] = {};  // of the rows from i on
  for (int64_t i = rows - 1; i >= 0; --i) {
    Vec across = splat(0.0F), beta_sum = splat(0.0F);
    for (int64_t c = 0; c <= i; c += kLanes) {
      const int64_t at = i * token_row + c;
      const Vec weight = load(tiles.w + at), grad_a = load(tiles.grad_a + at), grad_n = load(tiles.grad_n + at);
      const IntVec below = lane_numbers(c) < static_cast<int32_t>(i);
      const Vec mixed = below ? grad_n * weight : splat(0.0F);
      store(tiles.grad_qk + at, load(tiles.grad_qk + at) + grad_a * weight);
      store(tiles.grad_kk + at, load(tiles.grad_kk + at) - mixed * gates.beta[i]);
      beta_sum += mixed * load(tiles.keys.kk + at);
      const Vec both = grad_a * load(tiles.a + at) + grad_n * load(tiles.n + at);
      const Vec column = load(column_sums + c) + (below ? both : splat(0.0F));
      store(column_sums + c, column);
      across += below ? column : splat(0.0F);
    }
    grads.log_across[i] = sum(across);
    grads.beta[i] = -sum(beta_sum);
  }
}

// The tokens' part of the state after the chunk: into dX, dK and the decays to the end. tiles.y is dX so far.
EXPERTMESH_INLINE void add_state_update(const DeltaLayout& layout, const DeltaGates& gates, int64_t rows,
                                        const float* grad_state, BackwardTiles& tiles, GateGradients& grads) {
  const int64_t row = layout.value_row, cols = layout.values;
  zero_rows(tiles.work, rows, row);
  multiply_add({tiles.keys.k, layout.key_row, 1}, grad_state, row, tiles.work, row, rows, cols, layout.keys);
  for (int64_t r = 0; r < rows; ++r) {
    float *from = tiles.work + r * row, *x = tiles.x + r * row, *y = tiles.y + r * row;
    grads.log_to_end[r] = gates.to_end[r] * dot(from, x, cols);
    for (int64_t i = 0; i < cols; i += kLanes) {
      store(y + i, load(y + i) + load(from + i) * gates.to_end[r]);
      store(from + i, load(x + i) * gates.to_end[r]);
    }
  }
  transpose(grad_state, row, layout.keys, cols, tiles.state_transposed, layout.key_row);
  multiply_add({tiles.work, row, 1}, tiles.state_transposed, layout.key_row, tiles.grad_k, layout.key_row, rows,
               layout.keys, cols);
}

// What the chunk reads from the state before it: into dQ, dK, the decays from the start and dS. tiles.y is Y;
// tiles.work and tiles.grad_out are overwritten.
EXPERTMESH_INLINE void add_state_reads(const DeltaLayout& layout, const DeltaGates& gates, int64_t rows,
                                       bool has_grad_state, float* grad_state, BackwardTiles& tiles,
                                       GateGradients& grads) {
  const int64_t row = layout.value_row, key_row = layout.key_row, cols = layout.values;
  for (int64_t r = 0; r < rows; ++r) {
    const float from_start = gates.from_start[r];
    const float read = from_start * dot(tiles.y + r * row, tiles.reads + r * row, cols);
    grads.beta[r] -= read;
    grads.log_from_start[r] = -gates.beta[r] * read;
    for (int64_t i = 0; i < cols; i += kLanes) {
      const int64_t at = r * row + i;
      store(tiles.work + at, load(tiles.y + at) * (-gates.beta[r] * from_start));
      store(tiles.grad_out + at, load(tiles.grad_out + at) * from_start);
    }
  }
  transpose(tiles.state, row, layout.keys, cols, tiles.state_transposed, key_row);
  zero_rows(tiles.reads_grad, rows, key_row);
  multiply_add({tiles.grad_out, row, 1}, tiles.state_transposed, key_row, tiles.reads_grad, key_row, rows, layout.keys,
               cols);
  multiply_add({tiles.work, row, 1}, tiles.state_transposed, key_row, tiles.grad_k, key_row, rows, layout.keys, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const float *from = tiles.reads_grad + r * key_row, *q = tiles.keys.q + r * key_row;
    float* to = tiles.grad_q + r * key_row;
    grads.log_from_start[r] += dot(from, q, layout.keys);
    for (int64_t i = 0; i < layout.keys; i += kLanes) store(to + i, load(to + i) + load(from + i));
  }
  if (has_grad_state) {
    for (int64_t d = 0; d < layout.keys; ++d) {
      float* to = grad_state + d * row;
      grads.log_total += gates.total * dot(to, tiles.state + d * row, cols);
      scale_row(to, cols, gates.total);
    }
  } else {
    zero_rows(grad_state, layout.keys, row);
  }
  multiply_add({tiles.keys.q, 1, key_row}, tiles.grad_out, row, grad_state, row, layout.keys, cols, rows);
  multiply_add({tiles.keys.k, 1, key_row}, tiles.work, row, grad_state, row, layout.keys, cols, rows);
}

// A chunk of one value head. tiles.state holds the state before it where has_state.
template <typename T>
EXPERTMESH_INLINE void backward_head(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                     const DeltaLayout& layout, const DeltaChunk& chunk, int64_t head, bool has_state,
                                     bool has_grad_state, BackwardTiles& tiles, float* grad_state) {
  const int64_t rows = chunk.padded_rows, row = layout.value_row, cols = layout.values, token_row = layout.token_row;
  const int64_t gate_at = chunk.begin * shape.value_heads + head;
  const int64_t out_row = shape.value_heads * layout.value_dim,
                out_at = chunk.begin * out_row + head * layout.value_dim;
  DeltaGates gates;
  load_gates(tensors.g + gate_at, tensors.beta + gate_at, shape.value_heads, chunk, gates);
  mix_tokens(tiles.keys, token_row, rows, gates, tiles.w, tiles.n, tiles.a);
  load_tile(tensors.v + chunk.begin * shape.v_stride + head * layout.value_dim, shape.v_stride, chunk.rows,
            layout.value_dim, tiles.values, row, rows);
  load_tile(tensors.grad_out + out_at, out_row, chunk.rows, layout.value_dim, tiles.grad_out, row, rows);
  if (has_state) {
    zero_rows(tiles.reads, rows, row);
    multiply_add({tiles.keys.k, layout.key_row, 1}, tiles.state, row, tiles.reads, row, rows, cols, layout.keys);
  }
  make_right_side(gates, tiles.values, has_state ? tiles.reads : nullptr, tiles.x, row, rows, cols);
  solve(tiles.n, token_row, tiles.x, row, rows, cols);

  GateGradients grads = {};
  zero_rows(tiles.y, rows, row);
  add_lower_transposed_times(tiles.a, token_row, tiles.grad_out, tiles.y, row, rows, cols);
  if (has_grad_state) add_state_update(layout, gates, rows, grad_state, tiles, grads);
  solve_transposed(tiles.n, token_row, tiles.y, row, rows, cols);

  transpose(tiles.x, row, rows, cols, tiles.x_transposed, token_row);
  zero_rows(tiles.grad_a, rows, token_row);
  zero_rows(tiles.grad_n, rows, token_row);
  add_lower_product(tiles.grad_out, row, tiles.x_transposed, token_row, rows, cols, tiles.grad_a);
  add_lower_product(tiles.y, row, tiles.x_transposed, token_row, rows, cols, tiles.grad_n);
  unmix_tokens(gates, token_row, rows, tiles, grads);
  if (has_state) add_state_reads(layout, gates, rows, has_grad_state, grad_state, tiles, grads);

  for (int64_t r = 0; r < rows; ++r) {
    grads.beta[r] += dot(tiles.y + r * row, tiles.values + r * row, cols);
  }
  scale_rows(tiles.y, row, rows, cols, gates.beta);
  store_tile(tiles.y, row, chunk.rows, layout.value_dim, tensors.grad_v + out_at, out_row);
  float earlier = 0.0F, later = grads.log_total;  // what tokens before it send to the end, what later ones read
  for (int64_t i = 0; i < chunk.rows; ++i) {
    grads.log_across[i] += earlier;
    earlier += grads.log_to_end[i];
  }
  for (int64_t i = chunk.rows - 1; i >= 0; --i) {
    later += grads.log_from_start[i];
    tensors.grad_g[gate_at + i * shape.value_heads] = grads.log_across[i] + later;
    tensors.grad_beta[gate_at + i * shape.value_heads] = grads.beta[i];
  }
}

// From the gradient of a unit row times `scale` to that of the row, in place: both tiles have `cols` columns.
EXPERTMESH_INLINE void unmake_unit_rows(const float* units, float* grads, int64_t stride, int64_t rows, int64_t cols,
                                        float scale, const float* inverse_length) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* unit = units + r * stride;
    float* grad = grads + r * stride;
    const float along = dot(unit, grad, cols) / (scale * scale), factor = scale * inverse_length[r];
    for (int64_t i = 0; i < cols; i += kLanes) {
      store(grad + i, (load(grad + i) - load(unit + i) * along) * factor);
    }
  }
}

template <typename T>
EXPERTMESH_INLINE void store_key_gradients(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                           const DeltaLayout& layout, const DeltaChunk& chunk, int64_t key_head,
                                           BackwardTiles& tiles) {
  const int64_t rows = chunk.padded_rows, row = layout.key_row, token_row = layout.token_row;
  const DeltaKeys& keys = tiles.keys;
  add_lower_times(tiles.grad_qk, token_row, keys.k, tiles.grad_q, row, rows, layout.keys);
  add_lower_transposed_times(tiles.grad_qk, token_row, keys.q, tiles.grad_k, row, rows, layout.keys);
  add_lower_times(tiles.grad_kk, token_row, keys.k, tiles.grad_k, row, rows, layout.keys);
  add_lower_transposed_times(tiles.grad_kk, token_row, keys.k, tiles.grad_k, row, rows, layout.keys);
  const float scale = 1.0F / std::sqrt(static_cast<float>(layout.key_dim));
  unmake_unit_rows(keys.q, tiles.grad_q, row, rows, layout.keys, scale, keys.q_inverse);
  unmake_unit_rows(keys.k, tiles.grad_k, row, rows, layout.keys, 1.0F, keys.k_inverse);
  const int64_t out_row = shape.key_heads * layout.key_dim, at = chunk.begin * out_row + key_head * layout.key_dim;
  store_tile(tiles.grad_q, row, chunk.rows, layout.key_dim, tensors.grad_q + at, out_row);
  store_tile(tiles.grad_k, row, chunk.rows, layout.key_dim, tensors.grad_k + at, out_row);
}

template <typename T>
EXPERTMESH_INLINE void backward_unit(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                     const GatedDeltaUnit& unit, float* scratch) {
  const DeltaLayout layout(shape);
  Carver carver{scratch};
  BackwardTiles tiles;
  tiles.carve(carver, layout);
  const int64_t chunks = (unit.end - unit.begin + layout.chunk - 1) / layout.chunk, size = layout.state_elements();
  const int64_t first_head = unit.key_head * layout.heads_of_key;
  const bool has_initial = tensors.initial_state != nullptr, has_final = tensors.grad_final_state != nullptr;
  const auto grad_state_of = [&](int64_t h) { return tiles.grad_states + h * layout.state(); };
  const auto document_at = [&](int64_t h) { return (unit.document * shape.value_heads + first_head + h) * size; };
  const auto load_state = [&](const float* from, float* to) {
    load_tile(from, layout.value_dim, layout.key_dim, layout.value_dim, to, layout.value_row, layout.keys);
  };
  for (int64_t h = 0; h < layout.heads_of_key; ++h) {
    if (has_final) {
      load_state(tensors.grad_final_state + document_at(h), grad_state_of(h));
    } else {
      zero_rows(grad_state_of(h), layout.keys, layout.value_row);
    }
  }
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const DeltaChunk chunk = chunk_at(unit, c, layout.chunk);
    load_keys(tensors, shape, layout, chunk, unit.key_head, tiles.keys);
    for (float* tile : {tiles.grad_q, tiles.grad_k}) zero_rows(tile, chunk.padded_rows, layout.key_row);
    for (float* tile : {tiles.grad_qk, tiles.grad_kk}) zero_rows(tile, chunk.padded_rows, layout.token_row);
    for (int64_t h = 0; h < layout.heads_of_key; ++h) {
      if (c > 0) {
        load_state(tensors.chunk_states + ((unit.first_state + c - 1) * shape.value_heads + first_head + h) * size,
                   tiles.state);
      } else if (has_initial) {
        load_state(tensors.initial_state + document_at(h), tiles.state);
      }
      backward_head(tensors, shape, layout, chunk, first_head + h, c > 0 || has_initial, c + 1 < chunks || has_final,
                    tiles, grad_state_of(h));
    }
    store_key_gradients(tensors, shape, layout, chunk, unit.key_head, tiles);
  }
  for (int64_t h = 0; has_initial && h < layout.heads_of_key; ++h) {
    store_tile(grad_state_of(h), layout.value_row, layout.key_dim, layout.value_dim,
               tensors.grad_initial_state + document_at(h), layout.value_dim);
  }
}

}  // namespace

int64_t gated_delta_backward_scratch(const GatedDeltaShape& shape) {
  Carver carver;
  BackwardTiles tiles;
  tiles.carve(carver, DeltaLayout(shape));
  return carver.taken;
}

EXPERTMESH_CPU_KERNEL(void, gated_delta_backward,
                      (const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                       const GatedDeltaUnit& unit, float* scratch),
                      backward_unit, (tensors, shape, unit, scratch))
EXPERTMESH_CPU_KERNEL(void, gated_delta_backward,
                      (const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape, const GatedDeltaUnit& unit,
                       float* scratch),
                      backward_unit, (tensors, shape, unit, scratch))

}  // namespace expertmesh::ops::cpu
