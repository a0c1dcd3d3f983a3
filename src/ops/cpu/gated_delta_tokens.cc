// SPDX-License-Identifier: Apache-2.0
// One pass over the state decays it and reads what the key finds; a second writes and reads what the query finds.
#include "ops/cpu/gated_delta_tiles.h"

namespace expertmesh::ops::cpu {
namespace {

struct TokenRows {
  float *q, *k;            // [keys]
  float *found, *written;  // [values]

  EXPERTMESH_INLINE void carve(Carver& carver, const DeltaLayout& layout) {
    for (float** row : {&q, &k}) *row = carver.take(1, layout.keys);
    for (float** row : {&found, &written}) *row = carver.take(1, layout.values);
  }
};

// found = K^T (decay S), and S is decayed; then S += k written^T, and found = q^T S.
EXPERTMESH_INLINE void read_state(const DeltaLayout& layout, const TokenRows& rows, float decay, float* state) {
  zero_rows(rows.found, 1, layout.values);
  for (int64_t d = 0; d < layout.key_dim; ++d) {
    float* row = state + d * layout.value_dim;
    for (int64_t i = 0; i < layout.value_dim; i += kLanes) {
      const int64_t n = lanes_at(i, layout.value_dim);
      const Vec decayed = load(row + i, n) * decay;
      store(row + i, decayed, n);
      store(rows.found + i, load(rows.found + i) + decayed * rows.k[d]);
    }
  }
}

EXPERTMESH_INLINE void write_state(const DeltaLayout& layout, const TokenRows& rows, float* state) {
  zero_rows(rows.found, 1, layout.values);
  for (int64_t d = 0; d < layout.key_dim; ++d) {
    float* row = state + d * layout.value_dim;
    for (int64_t i = 0; i < layout.value_dim; i += kLanes) {
      const int64_t n = lanes_at(i, layout.value_dim);
      const Vec written = load(row + i, n) + load(rows.written + i) * rows.k[d];
      store(row + i, written, n);
      store(rows.found + i, load(rows.found + i) + written * rows.q[d]);
    }
  }
}

template <typename T>
EXPERTMESH_INLINE void run_tokens(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                  const GatedDeltaUnit& unit, int64_t value_head, float* state, float* scratch) {
  const DeltaLayout layout(shape);
  Carver carver{scratch};
  TokenRows rows;
  rows.carve(carver, layout);
  const int64_t key_column = value_head / layout.heads_of_key * layout.key_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(layout.key_dim));
  float inverse_length;
  for (int64_t t = unit.begin; t < unit.end; ++t) {
    load_tile(tensors.q + t * shape.q_stride + key_column, 0, 1, layout.key_dim, rows.q, layout.keys, 1);
    load_tile(tensors.k + t * shape.k_stride + key_column, 0, 1, layout.key_dim, rows.k, layout.keys, 1);
    make_unit_rows(rows.q, layout.keys, 1, layout.keys, scale, &inverse_length);
    make_unit_rows(rows.k, layout.keys, 1, layout.keys, 1.0F, &inverse_length);
    const int64_t gate_at = t * shape.value_heads + value_head;
    const T* v = tensors.v + t * shape.v_stride + value_head * layout.value_dim;
    read_state(layout, rows, exp(splat(tensors.g[gate_at]))[0], state);
    for (int64_t i = 0; i < layout.value_dim; i += kLanes) {
      const Vec value = load(v + i, lanes_at(i, layout.value_dim));
      store(rows.written + i, (value - load(rows.found + i)) * tensors.beta[gate_at]);
    }
    write_state(layout, rows, state);
    store_tile(rows.found, 0, 1, layout.value_dim, tensors.out + gate_at * layout.value_dim, 0);
  }
}

}  // namespace

int64_t gated_delta_tokens_scratch(const GatedDeltaShape& shape) {
  Carver carver;
  TokenRows rows;
  rows.carve(carver, DeltaLayout(shape));
  return carver.taken;
}

EXPERTMESH_CPU_KERNEL(void, gated_delta_tokens,
                      (const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                       const GatedDeltaUnit& unit, int64_t value_head, float* state, float* scratch),
                      run_tokens, (tensors, shape, unit, value_head, state, scratch))
EXPERTMESH_CPU_KERNEL(void, gated_delta_tokens,
                      (const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape, const GatedDeltaUnit& unit,
                       int64_t value_head, float* state, float* scratch),
                      run_tokens, (tensors, shape, unit, value_head, state, scratch))

}  // namespace expertmesh::ops::cpu
