// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gated_delta_tiles.h"

namespace expertmesh::ops::cpu {
namespace {

struct ForwardTiles {
  DeltaKeys keys;
  float *w, *n, *a;           // [chunk][token_row]
  float *values, *reads, *x;  // [chunk][value_row]
  float* states;              // [heads_of_key][keys][value_row]

  EXPERTMESH_INLINE void carve(Carver& carver, const DeltaLayout& layout) {
    keys.carve(carver, layout);
    for (float** tile : {&w, &n, &a}) *tile = carver.take(layout.chunk, layout.token_row);
    for (float** tile : {&values, &reads, &x}) *tile = carver.take(layout.chunk, layout.value_row);
    states = carver.take(layout.heads_of_key * layout.keys, layout.value_row);
  }
};

// A chunk of one value head: the output, and the state after the chunk where someone needs it.
template <typename T>
EXPERTMESH_INLINE void forward_head(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                    const DeltaLayout& layout, const DeltaChunk& chunk, int64_t head, bool has_state,
                                    bool needs_state, ForwardTiles& tiles, float* state) {
  const int64_t rows = chunk.padded_rows, row = layout.value_row, cols = layout.values;
  const int64_t gate_at = chunk.begin * shape.value_heads + head;
  DeltaGates gates;
  load_gates(tensors.g + gate_at, tensors.beta + gate_at, shape.value_heads, chunk, gates);
  mix_tokens(tiles.keys, layout.token_row, rows, gates, tiles.w, tiles.n, tiles.a);
  load_tile(tensors.v + chunk.begin * shape.v_stride + head * layout.value_dim, shape.v_stride, chunk.rows,
            layout.value_dim, tiles.values, row, rows);
  zero_rows(tiles.reads, rows, row);
  if (has_state) {
    multiply_add({tiles.keys.k, layout.key_row, 1}, state, row, tiles.reads, row, rows, cols, layout.keys);
  }
  make_right_side(gates, tiles.values, has_state ? tiles.reads : nullptr, tiles.x, row, rows, cols);
  solve(tiles.n, layout.token_row, tiles.x, row, rows, cols);

  float* out = tiles.reads;
  if (has_state) {
    zero_rows(out, rows, row);
    multiply_add({tiles.keys.q, layout.key_row, 1}, state, row, out, row, rows, cols, layout.keys);
    scale_rows(out, row, rows, cols, gates.from_start);
  }
  add_lower_times(tiles.a, layout.token_row, tiles.x, out, row, rows, cols);
  const int64_t out_row = shape.value_heads * layout.value_dim;
  store_tile(out, row, chunk.rows, layout.value_dim, tensors.out + chunk.begin * out_row + head * layout.value_dim,
             out_row);

  if (!needs_state) return;
  if (has_state) {
    for (int64_t d = 0; d < layout.keys; ++d) scale_row(state + d * row, cols, gates.total);
  } else {
    zero_rows(state, layout.keys, row);
  }
  scale_rows(tiles.x, row, rows, cols, gates.to_end);
  multiply_add({tiles.keys.k, 1, layout.key_row}, tiles.x, row, state, row, layout.keys, cols, rows);
}

template <typename T>
EXPERTMESH_INLINE void forward_unit(const GatedDeltaTensors<T>& tensors, const GatedDeltaShape& shape,
                                    const GatedDeltaUnit& unit, float* scratch) {
  const DeltaLayout layout(shape);
  Carver carver{scratch};
  ForwardTiles tiles;
  tiles.carve(carver, layout);
  const int64_t chunks = (unit.end - unit.begin + layout.chunk - 1) / layout.chunk, size = layout.state_elements();
  const int64_t first_head = unit.key_head * layout.heads_of_key;
  const bool has_initial = tensors.initial_state != nullptr, has_final = tensors.final_state != nullptr;
  const auto state_of = [&](int64_t h) { return tiles.states + h * layout.state(); };
  const auto document_at = [&](int64_t h) { return (unit.document * shape.value_heads + first_head + h) * size; };
  for (int64_t h = 0; h < layout.heads_of_key; ++h) {
    if (has_initial) {
      load_tile(tensors.initial_state + document_at(h), layout.value_dim, layout.key_dim, layout.value_dim, state_of(h),
                layout.value_row, layout.keys);
    } else {
      zero_rows(state_of(h), layout.keys, layout.value_row);
    }
  }
  for (int64_t c = 0; c < chunks; ++c) {
    const DeltaChunk chunk = chunk_at(unit, c, layout.chunk);
    load_keys(tensors, shape, layout, chunk, unit.key_head, tiles.keys);
    for (int64_t h = 0; h < layout.heads_of_key; ++h) {
      if (c > 0 && tensors.chunk_states != nullptr) {
        const int64_t at = ((unit.first_state + c - 1) * shape.value_heads + first_head + h) * size;
        store_tile(state_of(h), layout.value_row, layout.key_dim, layout.value_dim, tensors.chunk_states + at,
                   layout.value_dim);
      }
      forward_head(tensors, shape, layout, chunk, first_head + h, c > 0 || has_initial, c + 1 < chunks || has_final,
                   tiles, state_of(h));
    }
  }
  for (int64_t h = 0; has_final && h < layout.heads_of_key; ++h) {
    store_tile(state_of(h), layout.value_row, layout.key_dim, layout.value_dim, tensors.final_state + document_at(h),
               layout.value_dim);
  }
}

}  // namespace

int64_t gated_delta_forward_scratch(const GatedDeltaShape& shape) {
  Carver carver;
  ForwardTiles tiles;
  tiles.carve(carver, DeltaLayout(shape));
  return carver.taken;
}

EXPERTMESH_CPU_KERNEL(void, gated_delta_forward,
                      (const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                       const GatedDeltaUnit& unit, float* scratch),
                      forward_unit, (tensors, shape, unit, scratch))
EXPERTMESH_CPU_KERNEL(void, gated_delta_forward,
                      (const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape, const GatedDeltaUnit& unit,
                       float* scratch),
                      forward_unit, (tensors, shape, unit, scratch))

}  // namespace expertmesh::ops::cpu
