// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/adamw.h"

#include <cmath>

namespace expertmesh::ops::cpu {
namespace {

// A weight in fp32 or bf16.
template <typename T>
struct PlainWeight {
  T* w;
  EXPERTMESH_INLINE Vec get(int64_t i, int64_t n) const { return load(w + i, n); }
  EXPERTMESH_INLINE void set(int64_t i, Vec x, int64_t n) const { store(w + i, x, n); }
};

// high = (bits + 0x8000) >> 16 carries where bit 15 of low is set: taking the carry back gives the bits again.
struct MasterWeight {
  Bf16* w;
  uint16_t* low;
  EXPERTMESH_INLINE Vec get(int64_t i, int64_t n) const {
    const UintVec high = load_bits(&w[i].bits, n);
    const UintVec rest = load_bits(low + i, n);
    return reinterpret_cast<Vec>(((high - (rest >> 15)) << 16) | rest);
  }
  EXPERTMESH_INLINE void set(int64_t i, Vec x, int64_t n) const {
    const UintVec bits = reinterpret_cast<UintVec>(x);
    store_bits(&w[i].bits, (bits + 0x8000U) >> 16, n);
    store_bits(low + i, bits & 0xffffU, n);
  }
};

struct AdamWFactors {
  float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction, eps, grad_scale;
};

AdamWFactors factors(const AdamWStep& step) {
  const double correction1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  return {.decay = static_cast<float>(1.0 - step.lr * step.weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - step.beta2),
          .step_size = static_cast<float>(step.lr / correction1),
          .inv_sqrt_correction = static_cast<float>(1.0 / std::sqrt(correction2)),
          .eps = static_cast<float>(step.eps),
          .grad_scale = static_cast<float>(step.grad_scale)};
}

template <typename Weight, typename State>
EXPERTMESH_INLINE void adamw_body(const AdamWFactors& f, Weight weight, const float* grad, State* m, State* v,
                                  int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = lanes_at(i, size);
    const Vec g = load(grad + i, n) * f.grad_scale;
    Vec first = load(m + i, n);
    first += (g - first) * f.one_minus_beta1;
    const Vec second = load(v + i, n) * f.beta2 + g * g * f.one_minus_beta2;
    const Vec w = weight.get(i, n) * f.decay;
    const Vec denominator = sqrt(second) * f.inv_sqrt_correction + f.eps;
    store(m + i, first, n);
    store(v + i, second, n);
    weight.set(i, w - first / denominator * f.step_size, n);
  }
}

template <typename Weight, typename State>
EXPERTMESH_INLINE void sgd_body(const SgdStep& step, Weight weight, const float* grad, State* buf, int64_t size) {
  const float lr = static_cast<float>(step.lr);
  const float scale = static_cast<float>(step.grad_scale);
  const float decay = static_cast<float>(step.weight_decay);
  const float momentum = static_cast<float>(step.momentum);
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = lanes_at(i, size);
    const Vec w = weight.get(i, n);
    Vec g = load(grad + i, n) * scale + w * decay;
    if (momentum != 0.0F) {
      if (!step.is_first) g += load(buf + i, n) * momentum;
      store(buf + i, g, n);
    }
    weight.set(i, w - g * lr, n);
  }
}

EXPERTMESH_INLINE void split_body(const float* master, MasterWeight weight, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = lanes_at(i, size);
    weight.set(i, load(master + i, n), n);
  }
}

EXPERTMESH_INLINE void join_body(MasterWeight weight, float* master, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = lanes_at(i, size);
    store(master + i, weight.get(i, n), n);
  }
}

using Double8 = double __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32)));

EXPERTMESH_INLINE Double8 squares(const float* x) {
  Float8 narrow;
  std::memcpy(&narrow, x, sizeof narrow);
  const Double8 wide = __builtin_convertvector(narrow, Double8);
  return wide * wide;
}

EXPERTMESH_INLINE double sum_of_squares_body(const float* x, int64_t size) {
  Double8 a{}, b{};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    a += squares(x + i);
    b += squares(x + i + 8);
  }
  a += b;
  double total = 0.0;
  for (; i < size; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int lane = 0; lane < 8; ++lane) total += a[lane];
  return total;
}

using PlainFp32 = PlainWeight<float>;
using PlainBf16 = PlainWeight<Bf16>;

EXPERTMESH_CPU_KERNEL(void, run_adamw,
                      (const AdamWFactors& f, PlainFp32 w, const float* grad, float* m, float* v, int64_t n),
                      adamw_body, (f, w, grad, m, v, n))
EXPERTMESH_CPU_KERNEL(void, run_adamw,
                      (const AdamWFactors& f, MasterWeight w, const float* grad, float* m, float* v, int64_t n),
                      adamw_body, (f, w, grad, m, v, n))
EXPERTMESH_CPU_KERNEL(void, run_adamw,
                      (const AdamWFactors& f, PlainBf16 w, const float* grad, Bf16* m, Bf16* v, int64_t n), adamw_body,
                      (f, w, grad, m, v, n))
EXPERTMESH_CPU_KERNEL(void, run_sgd, (const SgdStep& step, PlainFp32 w, const float* grad, float* buf, int64_t n),
                      sgd_body, (step, w, grad, buf, n))
EXPERTMESH_CPU_KERNEL(void, run_sgd, (const SgdStep& step, MasterWeight w, const float* grad, float* buf, int64_t n),
                      sgd_body, (step, w, grad, buf, n))
EXPERTMESH_CPU_KERNEL(void, run_sgd, (const SgdStep& step, PlainBf16 w, const float* grad, Bf16* buf, int64_t n),
                      sgd_body, (step, w, grad, buf, n))
EXPERTMESH_CPU_KERNEL(void, run_split, (const float* master, MasterWeight w, int64_t n), split_body, (master, w, n))
EXPERTMESH_CPU_KERNEL(void, run_join, (MasterWeight w, float* master, int64_t n), join_body, (w, master, n))

}  // namespace

EXPERTMESH_CPU_KERNEL(double, sum_of_squares, (const float* x, int64_t n), sum_of_squares_body, (x, n))

void adamw(const AdamWStep& step, float* w, const float* grad, float* m, float* v, int64_t n) {
  run_adamw(factors(step), PlainFp32{w}, grad, m, v, n);
}
void adamw(const AdamWStep& step, Bf16* w, uint16_t* low, const float* grad, float* m, float* v, int64_t n) {
  run_adamw(factors(step), MasterWeight{w, low}, grad, m, v, n);
}
void adamw(const AdamWStep& step, Bf16* w, const float* grad, Bf16* m, Bf16* v, int64_t n) {
  run_adamw(factors(step), PlainBf16{w}, grad, m, v, n);
}

void sgd(const SgdStep& step, float* w, const float* grad, float* buf, int64_t n) {
  run_sgd(step, PlainFp32{w}, grad, buf, n);
}
void sgd(const SgdStep& step, Bf16* w, uint16_t* low, const float* grad, float* buf, int64_t n) {
  run_sgd(step, MasterWeight{w, low}, grad, buf, n);
}
void sgd(const SgdStep& step, Bf16* w, const float* grad, Bf16* buf, int64_t n) {
  run_sgd(step, PlainBf16{w}, grad, buf, n);
}

void split_master(const float* master, Bf16* w, uint16_t* low, int64_t n) { run_split(master, {w, low}, n); }
void join_master(const Bf16* w, const uint16_t* low, float* master, int64_t n) {
  run_join({const_cast<Bf16*>(w), const_cast<uint16_t*>(low)}, master, n);  // only read
}

}  // namespace expertmesh::ops::cpu
