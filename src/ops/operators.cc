// SPDX-License-Identifier: Apache-2.0
#include "ops/operators.h"

#include <array>

#include "ops/cpu/vec.h"
#include "ops/native.h"
#include "ops/operator_work.h"
#include "ops/reference/reference.h"

namespace expertmesh::ops {

const Operators& native_operators() {
  static constexpr Operators kOperators = {
      .name = "auto",
      .rms_norm = spanned<native::rms_norm, "rms_norm">,
      .gated_rms_norm = spanned<native::gated_rms_norm, "gated_rms_norm">,
      .rope = spanned<native::rope, "rope">,
      .swiglu = spanned<native::swiglu, "swiglu">,
      .sigmoid_gate = spanned<native::sigmoid_gate, "sigmoid_gate">,
      .attention = spanned<native::attention, "attention">,
      .cached_attention = spanned<native::cached_attention, "cached_attention">,
      .delta_gates = spanned<native::delta_gates, "delta_gates">,
      .gated_delta_rule = spanned<native::gated_delta_rule, "gated_delta_rule">,
      .gated_delta_step = spanned<native::gated_delta_step, "gated_delta_step">,
      .causal_conv1d_silu = spanned<native::causal_conv1d_silu, "causal_conv1d_silu">,
      .linear_cross_entropy = spanned<native::linear_cross_entropy, "linear_cross_entropy">,
      .linear_logprobs = spanned<native::linear_logprobs, "linear_logprobs">};
  return kOperators;
}

const Operators& reference_operators() {
  static constexpr Operators kOperators = {
      .name = "reference",
      .rms_norm = spanned<reference::rms_norm, "rms_norm">,
      .gated_rms_norm = spanned<reference::gated_rms_norm, "gated_rms_norm">,
      .rope = spanned<reference::rope, "rope">,
      .swiglu = spanned<reference::swiglu, "swiglu">,
      .sigmoid_gate = spanned<reference::sigmoid_gate, "sigmoid_gate">,
      .attention = spanned<reference::attention, "attention">,
      .cached_attention = spanned<reference::cached_attention, "cached_attention">,
      .delta_gates = spanned<reference::delta_gates, "delta_gates">,
      .gated_delta_rule = spanned<reference::gated_delta_rule, "gated_delta_rule">,
      .gated_delta_step = spanned<reference::gated_delta_step, "gated_delta_step">,
      .causal_conv1d_silu = spanned<reference::causal_conv1d_silu, "causal_conv1d_silu">,
      .linear_cross_entropy = spanned<reference::linear_cross_entropy, "linear_cross_entropy">,
      .linear_logprobs = spanned<reference::linear_logprobs, "linear_logprobs">};
  return kOperators;
}

namespace {

constexpr std::string_view kBoth = "fp32, bf16";
constexpr std::string_view kDelta = "flash-linear-attention";
constexpr std::string_view kRows = "[..., any]";
constexpr std::string_view kQueries = "q [T, nM, D], k v [T, M, D]";
constexpr std::string_view kStates = "q k [T, K, D], v [T, nK, E]";

constexpr OperatorInfo plain(std::string_view op, std::string_view summary = "plain ATen") {
  return {op, "reference", "any", "any", "any", summary, /*is_native=*/false};
}

}  // namespace

std::span<const OperatorInfo> operator_table() {
  static constexpr std::array kTable = {
      OperatorInfo{"rms_norm", "auto", "cpu", kBoth, kRows, "one pass"},
      OperatorInfo{"gated_rms_norm", "auto", "cpu", kBoth, kRows, "one pass"},
      OperatorInfo{"rope", "auto", "cpu", kBoth, "[T, N, D]", "one pass; part of a head, several axes"},
      OperatorInfo{"swiglu", "auto", "cpu", kBoth, kRows, "one pass"},
      OperatorInfo{"sigmoid_gate", "auto", "cpu", kBoth, "[..., any], gate the same or [..., 1]",
                   "one pass; rows where they lie"},
      OperatorInfo{"delta_gates", "auto", "cpu", kBoth, "a b [T, V], A_log dt_bias [V]", "decay and step in one pass"},
      OperatorInfo{"causal_conv1d_silu", "auto", "cpu", kBoth, "[T, C], [C, W]",
                   "convolution and SiLU in one pass, by document"},
      OperatorInfo{"attention", "auto", "cpu", kBoth, kQueries, "own tiles or ATen flash attention, by document"},
      OperatorInfo{"cached_attention", "auto", "cpu", kBoth, kQueries,
                   "keys and values read once, a long cache in pieces"},
      OperatorInfo{"linear_cross_entropy", "auto", "cpu", kBoth, "[T, H], [V, H]",
                   "head, loss, gradients over chunks of logits"},
      OperatorInfo{"chunk_gated_delta_rule", kDelta, "cpu", kBoth, kStates,
                   "chunks of 16, 32 or 64, a state kept for each"},
      OperatorInfo{"fused_recurrent_gated_delta_rule", kDelta, "cpu", kBoth, kStates, "token by token, for decoding"},
      plain("rms_norm"),
      plain("gated_rms_norm"),
      plain("rope"),
      plain("swiglu"),
      plain("sigmoid_gate"),
      plain("delta_gates"),
      plain("causal_conv1d_silu"),
      plain("attention", "plain ATen, all scores of a document in memory"),
      plain("cached_attention", "plain ATen, all scores of a document in memory"),
      plain("linear_cross_entropy"),
      plain("chunk_gated_delta_rule", "plain ATen, in chunks"),
      plain("fused_recurrent_gated_delta_rule", "plain ATen, token by token"),
  };
  return kTable;
}

std::string_view native_isa() {
  switch (cpu::processor_isa()) {
    case cpu::Isa::kAvx512:
      return "avx512";
    case cpu::Isa::kAvx2:
      return "avx2";
    case cpu::Isa::kBaseline:
      break;
  }
  return "x86-64";
}

}  // namespace expertmesh::ops
