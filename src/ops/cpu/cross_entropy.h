// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of rows of logits, with the gradient written over the logits. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Rows have `cols` contiguous logits. logprobs[row] = natural log-probability of targets[row] (fp64 at the end, so that
// only the fp32 sum of exponentials rounds).
// With row_scale, the logits become row_scale[row] * (softmax - one_hot(target)); without, they stay.
void cross_entropy_rows(float* logits, const int64_t* targets, const float* row_scale, double* logprobs, int64_t rows,
                        int64_t cols);
void cross_entropy_rows(Bf16* logits, const int64_t* targets, const float* row_scale, double* logprobs, int64_t rows,
                        int64_t cols);

// y = x.
void widen(float* y, const Bf16* x, int64_t n);

// y += x.
void accumulate(float* y, const Bf16* x, int64_t n);
void accumulate(float* y, const float* x, int64_t n);

}  // namespace expertmesh::ops::cpu
