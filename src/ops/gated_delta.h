// SPDX-License-Identifier: Apache-2.0
// What the operators of gated delta nets are asked for and give. Documents are laid end to end: document b is the
// tokens [cu_seqlens[b], cu_seqlens[b + 1]), which may be none.
// Shapes: T tokens, B documents, K key heads, V value heads (V a multiple of K), D key head dim, E value head dim,
// C channels, W taps of a convolution.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace expertmesh::ops {

// Value head h reads with key head h / (V / K) from a state S [D, E] of its document: for each token, with q and k
// divided by sqrt(|row|^2 + 1e-6),
//   S = e^g S;   S = S + k (beta (v - S^T k))^T;   out = S^T q / sqrt(D).
struct GatedDeltaInput {
  at::Tensor q_TKD;  // fp32 or bf16, all three the same
  at::Tensor k_TKD;
  at::Tensor v_TVE;
  at::Tensor g_TV;     // the log of the decay, at most 0; any dtype, read as fp32
  at::Tensor beta_TV;  // in [0, 1]; the same
  std::span<const int64_t> cu_seqlens;
  at::Tensor initial_state_BVDE;  // fp32; undefined: 0
  int64_t chunk_size = 64;        // of gated_delta_rule: 16, 32 or 64 tokens; changes speed and rounding only
  bool needs_final_state = false;
};

struct GatedDeltaResult {
  at::Tensor out_TVE;           // dtype of v
  at::Tensor final_state_BVDE;  // fp32; undefined where not asked for
};

// Both fp32, whatever they were computed from.
struct DeltaGates {
  at::Tensor g_TV;
  at::Tensor beta_TV;
};

// A causal convolution of each channel, then SiLU. Before the first token of a document stand the inputs of its
// initial state.
struct CausalConvInput {
  at::Tensor x_TC;       // fp32 or bf16, as the weight
  at::Tensor weight_CW;  // the last tap meets the token itself
  std::span<const int64_t> cu_seqlens;
  at::Tensor initial_state_BCW;  // W - 1 inputs, the latest last; dtype of x; undefined: 0
  bool needs_final_state = false;
};

struct CausalConvResult {
  at::Tensor out_TC;
  at::Tensor final_state_BCW;  // the last W - 1 inputs of each document; undefined where not asked for
};

// Programmer errors: shapes, dtypes and documents that do not fit together.
void check_input(const GatedDeltaInput& input);
void check_input(const CausalConvInput& input);

}  // namespace expertmesh::ops
