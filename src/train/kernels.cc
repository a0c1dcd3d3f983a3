// SPDX-License-Identifier: Apache-2.0
#include "train/kernels.h"

#include <fmt/format.h>

#include <vector>

#include "config/suggest.h"

namespace expertmesh::train {
namespace {

using config::Kernel;
using config::LinearAttentionOp;

void take_fused(ops::Operators& operators) {
  const ops::Operators& native = ops::native_operators();
  operators.name = native.name;
  operators.rms_norm = native.rms_norm;
  operators.gated_rms_norm = native.gated_rms_norm;
  operators.rope = native.rope;
  operators.swiglu = native.swiglu;
  operators.sigmoid_gate = native.sigmoid_gate;
  operators.delta_gates = native.delta_gates;
  operators.causal_conv1d_silu = native.causal_conv1d_silu;
  operators.linear_cross_entropy = native.linear_cross_entropy;
  operators.linear_logprobs = native.linear_logprobs;
}

void take_linear_attention(ops::Operators& operators, const std::vector<LinearAttentionOp>& included) {
  for (const LinearAttentionOp op : included) {
    switch (op) {
      case LinearAttentionOp::kChunkGatedDeltaRule:
        operators.gated_delta_rule = ops::native_operators().gated_delta_rule;
        break;
      case LinearAttentionOp::kFusedRecurrentGatedDeltaRule:
        operators.gated_delta_step = ops::native_operators().gated_delta_step;
        break;
    }
  }
}

}  // namespace

ops::Operators choose_operators(const config::KernelConfig& kernel, config::FlashAttention attention) {
  ops::Operators operators = ops::reference_operators();
  for (const Kernel name : kernel.names) {
    switch (name) {
      case Kernel::kAuto:
        take_fused(operators);
        break;
      case Kernel::kFlashLinearAttention:
        take_linear_attention(operators, kernel.include_kernels);
        break;
      case Kernel::kReference:
        operators = ops::reference_operators();
        break;
    }
  }
  // sdpa and flash_attention_2 are names of the same here: the best kernel, which always goes by document.
  const bool is_plain = kernel.has(Kernel::kReference) || attention == config::FlashAttention::kEager;
  const ops::Operators& chosen = is_plain ? ops::reference_operators() : ops::native_operators();
  operators.attention = chosen.attention;
  operators.cached_attention = chosen.cached_attention;
  return operators;
}

std::string kernels_text(const config::KernelConfig& kernel, bool has_linear_attention) {
  std::vector<std::string> used;
  for (const Kernel name : kernel.names) {
    if (name == Kernel::kReference) used.clear();
    if (name == Kernel::kFlashLinearAttention && !has_linear_attention) continue;
    used.emplace_back(config::choice_name(name));
  }
  std::string text = used.empty() ? "reference" : config::join_names(used);
  if (has_linear_attention) text += fmt::format(", gated delta rule in chunks of {}", kernel.chunk_size);
  return text;
}

}  // namespace expertmesh::train
