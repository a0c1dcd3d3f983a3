// SPDX-License-Identifier: Apache-2.0
// Every operator of the table in plain ATen, as the formula reads: slow, kept for ever, and what the native ones are
// compared with. `flash_attn: eager` and `kernel_config: reference` run these.
#pragma once

#include "ops/operators.h"

namespace expertmesh::ops::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset);
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps);
at::Tensor rope(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                const at::Tensor& sin_PR);
at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI);
at::Tensor sigmoid_gate(const at::Tensor& x_TI, const at::Tensor& gate_TI);
at::Tensor attention(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                     std::span<const int64_t> cu_seqlens, double scale);
at::Tensor cached_attention(const CachedAttentionInput& input);
DeltaGates delta_gates(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                       const at::Tensor& dt_bias_V);
GatedDeltaResult gated_delta_rule(const GatedDeltaInput& input);
GatedDeltaResult gated_delta_step(const GatedDeltaInput& input);
CausalConvResult causal_conv1d_silu(const CausalConvInput& input);
CrossEntropyResult linear_cross_entropy(const CrossEntropyInput& input);
at::Tensor linear_logprobs(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T);

}  // namespace expertmesh::ops::reference
