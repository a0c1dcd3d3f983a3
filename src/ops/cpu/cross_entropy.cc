// SPDX-License-Identifier: Apache-2.0
// Three passes over a row that stays in the second-level cache: largest logit, sum of exponentials, gradient.
#include "ops/cpu/cross_entropy.h"

#include <cmath>

namespace expertmesh::ops::cpu {
namespace {

EXPERTMESH_INLINE float value_of(float x) { return x; }
EXPERTMESH_INLINE float value_of(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
EXPERTMESH_INLINE float row_max(const T* x, int64_t cols) {
  Vec a = splat(-__builtin_inff()), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
    a = max(load(x + i), a);
    b = max(load(x + i + kLanes), b);
  }
  for (; i < cols; i += kLanes) a = max(load(x + i, lanes_at(i, cols), -__builtin_inff()), a);
  return max(max(a, b));
}

// Partial sums go to double every 64 steps, so that a vocabulary of 250,000 costs no digits.
template <typename T>
EXPERTMESH_INLINE double row_sum_exp(const T* x, int64_t cols, float most) {
  constexpr int64_t kBlock = kLanes * 2 * 64;
  double total = 0.0;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    Vec a = splat(0.0F), b = splat(0.0F);
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      a += exp(load(x + i) - most);
      b += exp(load(x + i + kLanes) - most);
    }
    for (; i < end; i += kLanes) a += exp(load(x + i, lanes_at(i, end), -__builtin_inff()) - most);
    total += static_cast<double>(sum(a + b));
  }
  return total;
}

// scale * (softmax - one_hot) in place; softmax = e^(x - shift).
template <typename T>
EXPERTMESH_INLINE void write_gradient(T* x, int64_t cols, float shift, float scale, int64_t target, float target_grad) {
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int64_t n = lanes_at(i, cols);
    store(x + i, exp(load(x + i, n) - shift) * scale, n);
  }
  store(x + target, splat(target_grad), 1);
}

template <typename T>
EXPERTMESH_INLINE void rows_body(T* logits, const int64_t* targets, const float* row_scale, double* logprobs,
                                 int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, logits += cols) {
    const float most = row_max(logits, cols);
    const double log_sum = std::log(row_sum_exp(logits, cols, most));
    const double logprob = static_cast<double>(value_of(logits[targets[row]])) - most - log_sum;
    logprobs[row] = logprob;
    if (row_scale == nullptr) continue;
    // expm1 keeps the digits of p - 1 where the target is nearly certain.
    const float target_grad = static_cast<float>(std::expm1(logprob) * row_scale[row]);
    write_gradient(logits, cols, static_cast<float>(most + log_sum), row_scale[row], targets[row], target_grad);
  }
}

template <typename T>
EXPERTMESH_INLINE void accumulate_body(float* y, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = lanes_at(i, n);
    store(y + i, load(y + i, lanes) + load(x + i, lanes), lanes);
  }
}

EXPERTMESH_INLINE void widen_body(float* y, const Bf16* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, load(x + i, lanes_at(i, n)), lanes_at(i, n));
}

}  // namespace

EXPERTMESH_CPU_KERNEL(void, cross_entropy_rows,
                      (float* logits, const int64_t* targets, const float* row_scale, double* logprobs, int64_t rows,
                       int64_t cols),
                      rows_body, (logits, targets, row_scale, logprobs, rows, cols))
EXPERTMESH_CPU_KERNEL(void, cross_entropy_rows,
                      (Bf16 * logits, const int64_t* targets, const float* row_scale, double* logprobs, int64_t rows,
                       int64_t cols),
                      rows_body, (logits, targets, row_scale, logprobs, rows, cols))
EXPERTMESH_CPU_KERNEL(void, widen, (float* y, const Bf16* x, int64_t n), widen_body, (y, x, n))
EXPERTMESH_CPU_KERNEL(void, accumulate, (float* y, const Bf16* x, int64_t n), accumulate_body, (y, x, n))
EXPERTMESH_CPU_KERNEL(void, accumulate, (float* y, const float* x, int64_t n), accumulate_body, (y, x, n))

}  // namespace expertmesh::ops::cpu
