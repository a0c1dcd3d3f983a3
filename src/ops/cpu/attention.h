// SPDX-License-Identifier: Apache-2.0
// Causal attention of one document and one key/value head with its query heads, forward and backward, in fp32 over
// tiles of 64 by 64 with a running softmax: scores exist a tile at a time. Units (document, key/value head) are
// independent: callers spread them over threads. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// q, out and their gradients are [T, heads, head_dim], k, v and theirs [T, kv_heads, head_dim], all contiguous;
// logsumexp is [T, heads].
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 1.0F;
};

// Tokens [begin, end) and the query heads of `kv_head`.
struct AttentionUnit {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t kv_head = 0;
};

// Floats of scratch memory that a unit of this length needs, forward or backward.
int64_t attention_scratch_size(const AttentionShape& shape, int64_t length);

template <typename T>
struct AttentionTensors {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  T* out = nullptr;            // written by the forward, read by the backward
  float* logsumexp = nullptr;  // the same
  const T* grad_out = nullptr;
  T* grad_q = nullptr;
  T* grad_k = nullptr;
  T* grad_v = nullptr;
};

void attention_forward(const AttentionTensors<float>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch);
void attention_forward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                       float* scratch);
void attention_backward(const AttentionTensors<float>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                        float* scratch);
void attention_backward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape, const AttentionUnit& unit,
                        float* scratch);

}  // namespace expertmesh::ops::cpu
