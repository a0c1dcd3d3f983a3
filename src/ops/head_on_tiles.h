// SPDX-License-Identifier: Apache-2.0
// The linear head and cross-entropy over the kernels of cpu/linear_head.h: a chunk of tokens at a time, groups of the
// vocabulary spread over the caller's intra-op threads. For linear_cross_entropy.cc; what does not suit it goes through
// the library there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace expertmesh::ops {

// bf16 in rows of a suitable length on a processor with AVX-512 BF16, and without AMX, where the library is faster.
bool suits_head_tiles(const at::Tensor& weight_VH);

struct HeadProblem {
  at::Tensor x;       // [rows, H], contiguous; each row has a target
  at::Tensor weight;  // [V, H]
  std::span<const int64_t> targets;
  std::span<const float> scales;        // of each row's gradient; empty: no gradients
  at::Tensor grad_x;                    // [rows, H], written; undefined: not wanted
  at::Tensor grad_weight;               // fp32 [V, H]; undefined: not wanted
  bool overwrites_grad_weight = false;  // else it is added to
  int64_t logits_bytes = 0;             // of the chunk of logits that exists at a time, though never less than 32 rows
};

// Log-probabilities of the targets into logprobs [rows], and the gradients.
void head_on_tiles(const HeadProblem& problem, double* logprobs);

}  // namespace expertmesh::ops
