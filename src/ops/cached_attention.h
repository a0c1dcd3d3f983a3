// SPDX-License-Identifier: Apache-2.0
// What attention against caches is asked for: some new tokens of each document against the keys and values of all its
// tokens so far. Document b is the new tokens [cu_seqlens[b], cu_seqlens[b + 1]), which may be none.
// Shapes: T new tokens, B documents, N query heads, M key/value heads (N a multiple of M), D head dim, S tokens that a
// cache has room for, its own for each document.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace expertmesh::ops {

// Causal: new token i of n of a document with `length` tokens in its cache sees the first length - n + i + 1 of them.
struct CachedAttentionInput {
  at::Tensor q_TND;                      // fp32 or bf16
  std::span<const at::Tensor> keys_MSD;  // one a document, contiguous, dtype of q; the new tokens' rows are in
  std::span<const at::Tensor> values_MSD;
  std::span<const int64_t> cu_seqlens;  // of the new tokens
  std::span<const int64_t> lengths;     // tokens in each cache; rows past them are never read
  double scale = 1.0;
};

// Programmer errors: shapes, dtypes and documents that do not fit together, and inputs that want a graph.
void check_input(const CachedAttentionInput& input);

}  // namespace expertmesh::ops
