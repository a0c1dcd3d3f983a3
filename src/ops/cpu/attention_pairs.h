// SPDX-License-Identifier: Apache-2.0
// The kernel of attention.h on products of bf16 pairs (pair_product.h): scores and their gradients are fp32,
// probabilities and gradients of scores are rounded to bf16 before they are multiplied. No torch.
#pragma once

#include "ops/cpu/attention.h"

namespace expertmesh::ops::cpu {

// Floats of scratch memory, as attention_scratch_size.
int64_t attention_pairs_scratch_size(const AttentionShape& shape, int64_t length);

void attention_pairs_forward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                             const AttentionUnit& unit, float* scratch);
void attention_pairs_backward(const AttentionTensors<Bf16>& tensors, const AttentionShape& shape,
                              const AttentionUnit& unit, float* scratch);

}  // namespace expertmesh::ops::cpu
