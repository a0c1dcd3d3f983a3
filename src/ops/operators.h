// SPDX-License-Identifier: Apache-2.0
// The table of operators: one signature each, one struct per implementation. `native` is the CPU's own kernels and
// ATen's flash attention; `reference` is plain ATen, kept for ever, with which everything is compared.
// Threads: any; each call uses the caller's intra-op threads.
// Shapes: T tokens, N query heads, M key/value heads (N a multiple of M), D head dim, H hidden, I width, V vocabulary,
// P positions of a table. Computation inside is fp32; results come in the dtype of the input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "ops/cached_attention.h"
#include "ops/gated_delta.h"

namespace expertmesh::ops {

// What linear_cross_entropy is asked for.
struct CrossEntropyInput {
  at::Tensor hidden_TH;
  at::Tensor weight_VH;
  at::Tensor targets_T;  // int64; -100: no target, the row costs nothing
  at::Tensor weights_T;  // fp32; undefined: all 1
  double scale = 1.0;    // of the loss and of every gradient
  bool needs_grad_hidden = false;
  at::Tensor grad_weight_VH;                  // fp32; undefined: not wanted
  bool overwrites_grad_weight = false;        // what grad_weight_VH holds is not read; else it is added to
  int64_t logits_bytes = int64_t{160} << 20;  // of the chunk of logits that exists at a time
};

struct CrossEntropyResult {
  double loss = 0.0;          // sum of weight * scale * nll
  at::Tensor grad_hidden_TH;  // zero rows where there is no target; undefined where not asked for
};

struct Operators {
  std::string_view name;

  // x / sqrt(mean(x^2) + eps) * (weight_offset + weight) over the last dim. Differentiable. Some models keep weights as
  // their distance from 1: weight_offset 1.
  at::Tensor (*rms_norm)(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset);

  // x / sqrt(mean(x^2) + eps) * weight * silu(gate) over the last dim; gate has the shape of x. Differentiable.
  at::Tensor (*gated_rms_norm)(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps);

  // Rotates the halves of the first 2 * cos.size(1) elements of each head by the angles of its token's position; the
  // rest passes through. Tables are fp32 [P, rotary dim / 2]. Differentiable in x.
  at::Tensor (*rope)(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                     const at::Tensor& sin_PR);

  // silu(gate) * up. Differentiable.
  at::Tensor (*swiglu)(const at::Tensor& gate_TI, const at::Tensor& up_TI);

  // x * sigmoid(gate), where the gate has the shape of x or one element a row, [T, 1]; rows of both may lie apart.
  // Differentiable.
  at::Tensor (*sigmoid_gate)(const at::Tensor& x_TI, const at::Tensor& gate_TI);

  // Causal softmax attention inside each document [cu_seqlens[d], cu_seqlens[d + 1]); [T, N, D]. Differentiable.
  at::Tensor (*attention)(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                          std::span<const int64_t> cu_seqlens, double scale);

  // The same for a few new tokens of each document against all its keys and values so far: for decoding; [T, N, D].
  // No graph.
  at::Tensor (*cached_attention)(const CachedAttentionInput& input);

  // g = -e^A_log softplus(a + dt_bias) and beta = sigmoid(b): what the gated delta rule takes as decay and step.
  // Differentiable.
  DeltaGates (*delta_gates)(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                            const at::Tensor& dt_bias_V);

  // The gated delta rule in chunks: for training and long prompts. Differentiable in q, k, v, g, beta and the initial
  // state. `chunk_gated_delta_rule` in kernel_config.
  GatedDeltaResult (*gated_delta_rule)(const GatedDeltaInput& input);

  // The same, token by token: for decoding and prompts of a few tokens. No graph in the native one.
  // `fused_recurrent_gated_delta_rule` in kernel_config.
  GatedDeltaResult (*gated_delta_step)(const GatedDeltaInput& input);

  // Causal convolution of each channel, then SiLU. Differentiable in x, the weight and the initial state.
  CausalConvResult (*causal_conv1d_silu)(const CausalConvInput& input);

  // Linear head and cross-entropy with their gradients in one pass over bounded chunks of logits. No graph.
  CrossEntropyResult (*linear_cross_entropy)(const CrossEntropyInput& input);

  // Natural log-probabilities of targets_T under softmax(hidden weight^T): fp32 [T], 0 where there is no target.
  at::Tensor (*linear_logprobs)(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T);
};

const Operators& native_operators();
const Operators& reference_operators();

// One line of `expertmesh list kernels`.
struct OperatorInfo {
  std::string_view op;
  std::string_view kernel;  // the name in kernel_config that selects it: "auto", "flash-linear-attention", "reference"
  std::string_view device;
  std::string_view dtypes;
  std::string_view takes;  // shapes, in the letters above
  std::string_view summary;
  bool is_native = true;  // compiled for AVX-512, AVX2 and any x86-64; else whatever ATen has
};
std::span<const OperatorInfo> operator_table();

// The instruction set that native kernels run with here: "avx512", "avx2" or "x86-64".
std::string_view native_isa();

}  // namespace expertmesh::ops
