// SPDX-License-Identifier: Apache-2.0
#include "ops/operators.h"

#include <array>

#include "ops/native.h"
#include "ops/reference/reference.h"

namespace expertmesh::ops {

const Operators& native_operators() {
  static constexpr Operators kOperators = {.name = "auto",
                                           .rms_norm = native::rms_norm,
                                           .gated_rms_norm = native::gated_rms_norm,
                                           .rope = native::rope,
                                           .swiglu = native::swiglu,
                                           .attention = native::attention,
                                           .cached_attention = native::cached_attention,
                                           .gated_delta_rule = native::gated_delta_rule,
                                           .gated_delta_step = native::gated_delta_step,
                                           .causal_conv1d_silu = native::causal_conv1d_silu,
                                           .linear_cross_entropy = native::linear_cross_entropy,
                                           .linear_logprobs = native::linear_logprobs};
  return kOperators;
}

const Operators& reference_operators() {
  static constexpr Operators kOperators = {.name = "reference",
                                           .rms_norm = reference::rms_norm,
                                           .gated_rms_norm = reference::gated_rms_norm,
                                           .rope = reference::rope,
                                           .swiglu = reference::swiglu,
                                           .attention = reference::attention,
                                           .cached_attention = reference::cached_attention,
                                           .gated_delta_rule = reference::gated_delta_rule,
                                           .gated_delta_step = reference::gated_delta_step,
                                           .causal_conv1d_silu = reference::causal_conv1d_silu,
                                           .linear_cross_entropy = reference::linear_cross_entropy,
                                           .linear_logprobs = reference::linear_logprobs};
  return kOperators;
}

std::span<const OperatorInfo> operator_table() {
  static constexpr std::array kTable = {
      OperatorInfo{"rms_norm", "auto", "cpu", "one pass, AVX-512 or AVX2"},
      OperatorInfo{"rope", "auto", "cpu", "one pass, AVX-512 or AVX2"},
      OperatorInfo{"swiglu", "auto", "cpu", "one pass, AVX-512 or AVX2"},
      OperatorInfo{"attention", "auto", "cpu", "own tiles (AVX-512) or ATen flash attention, by document"},
      OperatorInfo{"cached_attention", "auto", "cpu", "keys and values read once, a long cache in pieces"},
      OperatorInfo{"gated_rms_norm", "auto", "cpu", "one pass, AVX-512 or AVX2"},
      OperatorInfo{"causal_conv1d_silu", "auto", "cpu", "convolution and SiLU in one pass, by document"},
      OperatorInfo{"linear_cross_entropy", "auto", "cpu", "head, loss and gradients over bounded chunks of logits"},
      OperatorInfo{"chunk_gated_delta_rule", "flash-linear-attention", "cpu",
                   "chunks of 16, 32 or 64 tokens; keeps one state a chunk for the backward"},
      OperatorInfo{"fused_recurrent_gated_delta_rule", "flash-linear-attention", "cpu", "token by token, for decoding"},
      OperatorInfo{"rms_norm", "reference", "any", "plain ATen"},
      OperatorInfo{"rope", "reference", "any", "plain ATen"},
      OperatorInfo{"swiglu", "reference", "any", "plain ATen"},
      OperatorInfo{"attention", "reference", "any", "plain ATen, all scores of a document in memory"},
      OperatorInfo{"cached_attention", "reference", "any", "plain ATen, all scores of a document in memory"},
      OperatorInfo{"gated_rms_norm", "reference", "any", "plain ATen"},
      OperatorInfo{"causal_conv1d_silu", "reference", "any", "plain ATen"},
      OperatorInfo{"chunk_gated_delta_rule", "reference", "any", "plain ATen, in chunks"},
      OperatorInfo{"fused_recurrent_gated_delta_rule", "reference", "any", "plain ATen, token by token"},
      OperatorInfo{"linear_cross_entropy", "reference", "any", "plain ATen"},
  };
  return kTable;
}

}  // namespace expertmesh::ops
