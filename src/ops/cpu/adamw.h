// SPDX-License-Identifier: Apache-2.0
// Fused optimizer steps over a range of elements, one pass, fp32 inside, in three storages of the weight:
//   fp32                fp32 states
//   bf16 with a master  the fp32 master is the bf16 weight and 16 more bits (`low`); fp32 states
//   bf16 alone          bf16 states: each value is rounded once a step (upstream's plain bf16 AdamW)
// Gradients are fp32, times `grad_scale` (the clipping coefficient). Ranges may be split over threads anywhere. No
// torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// One step of torch.optim.AdamW: w -= lr * wd * w; m, v = moving averages of g and g^2;
// w -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps).
struct AdamWStep {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  int64_t step = 1;  // t, from 1
  double grad_scale = 1.0;
};

void adamw(const AdamWStep& step, float* w, const float* grad, float* m, float* v, int64_t n);
void adamw(const AdamWStep& step, Bf16* w, uint16_t* low, const float* grad, float* m, float* v, int64_t n);
void adamw(const AdamWStep& step, Bf16* w, const float* grad, Bf16* m, Bf16* v, int64_t n);

// One step of torch.optim.SGD: g += wd * w; buf = momentum * buf + g (g itself in the first step); w -= lr * buf.
struct SgdStep {
  double lr = 1e-4;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool is_first = true;  // the momentum buffer is written, not read
  double grad_scale = 1.0;
};

// `buf` may be null where momentum is 0.
void sgd(const SgdStep& step, float* w, const float* grad, float* buf, int64_t n);
void sgd(const SgdStep& step, Bf16* w, uint16_t* low, const float* grad, float* buf, int64_t n);
void sgd(const SgdStep& step, Bf16* w, const float* grad, Bf16* buf, int64_t n);

// The master of a bf16 weight: its fp32 value as bf16 (rounded, ties away from zero) and the low half of its bits.
void split_master(const float* master, Bf16* w, uint16_t* low, int64_t n);
void join_master(const Bf16* w, const uint16_t* low, float* master, int64_t n);

// Sum of squares in fp64. Not finite exactly where an element is not finite: squares of floats fit a double.
double sum_of_squares(const float* x, int64_t n);

}  // namespace expertmesh::ops::cpu
