// SPDX-License-Identifier: Apache-2.0
// The CPU's own operators behind the table (operators.h): autograd functions around the torch-free kernels of cpu/,
// split over the caller's intra-op threads, and ATen's flash attention where it is the faster one.
#pragma once

#include "ops/operators.h"

namespace expertmesh::ops::native {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double weight_offset);
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps);
at::Tensor rope(const at::Tensor& x_TND, const at::Tensor& positions_T, const at::Tensor& cos_PR,
                const at::Tensor& sin_PR);
at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI);
at::Tensor sigmoid_gate(const at::Tensor& x_TI, const at::Tensor& gate_TI);
// attention_tiles where this processor and the number of documents suit it, else attention_flash.
at::Tensor attention(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                     std::span<const int64_t> cu_seqlens, double scale);
// The own kernel, a task a document and key/value head: the faster one with at least as many tasks as threads.
at::Tensor attention_tiles(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                           std::span<const int64_t> cu_seqlens, double scale);
// ATen's flash kernel, document by document.
at::Tensor attention_flash(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                           std::span<const int64_t> cu_seqlens, double scale);
at::Tensor cached_attention(const CachedAttentionInput& input);
DeltaGates delta_gates(const at::Tensor& a_TV, const at::Tensor& b_TV, const at::Tensor& A_log_V,
                       const at::Tensor& dt_bias_V);
GatedDeltaResult gated_delta_rule(const GatedDeltaInput& input);
GatedDeltaResult gated_delta_step(const GatedDeltaInput& input);
CausalConvResult causal_conv1d_silu(const CausalConvInput& input);
CrossEntropyResult linear_cross_entropy(const CrossEntropyInput& input);
at::Tensor linear_logprobs(const at::Tensor& hidden_TH, const at::Tensor& weight_VH, const at::Tensor& targets_T);

}  // namespace expertmesh::ops::native
