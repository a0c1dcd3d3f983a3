// SPDX-License-Identifier: Apache-2.0
// The gated delta rule (ops/gated_delta.h has the formula) of one document and one key head with its value heads,
// forward and backward, in chunks; fp32 inside. Units (document, key head) are independent: callers spread them over
// threads. The forward keeps the state before each chunk but a document's first; the backward computes the rest of a
// chunk again. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kMaxDeltaChunk = 64;

struct GatedDeltaShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t chunk_size = kMaxDeltaChunk;  // 16, 32 or 64
  int64_t q_stride = 0;                 // elements from a token to the next; its heads are contiguous
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

// Tokens [begin, end) of document `document`.
struct GatedDeltaUnit {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t document = 0;
  int64_t key_head = 0;
  int64_t first_state = 0;  // where the document's states begin in chunk_states
};

// Outputs and gradients are contiguous, also those of strided inputs. g, beta and their gradients are [T, V]; a state
// is [V, D, E].
template <typename T>
struct GatedDeltaTensors {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  const float* g = nullptr;
  const float* beta = nullptr;
  const float* initial_state = nullptr;  // [B, V, D, E]; null: 0
  T* out = nullptr;
  float* final_state = nullptr;   // [B, V, D, E]; null: not wanted
  float* chunk_states = nullptr;  // [chunks - documents, V, D, E]; null: not kept. The backward reads it
  const T* grad_out = nullptr;
  const float* grad_final_state = nullptr;  // null: 0
  T* grad_q = nullptr;
  T* grad_k = nullptr;
  T* grad_v = nullptr;
  float* grad_g = nullptr;
  float* grad_beta = nullptr;
  float* grad_initial_state = nullptr;  // given where initial_state is
};

// States that a document of this length keeps.
constexpr int64_t kept_states(int64_t length, int64_t chunk_size) { return length > 0 ? (length - 1) / chunk_size : 0; }

// Floats of scratch memory, on a cache line's border, that a unit needs.
int64_t gated_delta_forward_scratch(const GatedDeltaShape& shape);
int64_t gated_delta_backward_scratch(const GatedDeltaShape& shape);

void gated_delta_forward(const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                         const GatedDeltaUnit& unit, float* scratch);
void gated_delta_forward(const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape,
                         const GatedDeltaUnit& unit, float* scratch);
void gated_delta_backward(const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                          const GatedDeltaUnit& unit, float* scratch);
void gated_delta_backward(const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape,
                          const GatedDeltaUnit& unit, float* scratch);

// Token by token, for value head `value_head` of the unit (whose key_head means nothing). `state` [D, E] is replaced.
void gated_delta_tokens(const GatedDeltaTensors<float>& tensors, const GatedDeltaShape& shape,
                        const GatedDeltaUnit& unit, int64_t value_head, float* state, float* scratch);
void gated_delta_tokens(const GatedDeltaTensors<Bf16>& tensors, const GatedDeltaShape& shape,
                        const GatedDeltaUnit& unit, int64_t value_head, float* state, float* scratch);
int64_t gated_delta_tokens_scratch(const GatedDeltaShape& shape);

}  // namespace expertmesh::ops::cpu
