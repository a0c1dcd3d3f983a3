// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace expertmesh::ops::cpu {
namespace {

// torch.optim.AdamW in double, one element.
struct ExactAdamW {
  double w, m = 0.0, v = 0.0;
  void step(const AdamWStep& s, double grad) {
    const double g = grad * s.grad_scale;
    w *= 1.0 - s.lr * s.weight_decay;
    m = s.beta1 * m + (1.0 - s.beta1) * g;
    v = s.beta2 * v + (1.0 - s.beta2) * g * g;
    const double m_hat = m / (1.0 - std::pow(s.beta1, static_cast<double>(s.step)));
    const double v_hat = v / (1.0 - std::pow(s.beta2, static_cast<double>(s.step)));
    w -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
  }
};

float gradient(size_t i, int64_t step) {
  return 0.01F * std::sin(static_cast<float>(i) * 1.7F + static_cast<float>(step));
}

// tests/cases/values/adamw.json
TEST(AdamW, GivesTheNumbersOfTheReference) {
  float w = 2.0F, m = 0.0F, v = 0.0F;
  const float zero = 0.0F;
  for (int64_t t = 1; t <= 3; ++t) adamw({.lr = 1e-2, .weight_decay = 0.1, .step = t}, &w, &zero, &m, &v, 1);
  EXPECT_NEAR(w, 1.994006, 1e-6);

  w = 2.0F;
  m = v = 0.0F;
  const float gradients[] = {0.5F, -0.25F, 1e-6F};
  const double expected[] = {1.99898, 1.99869367, 1.99846781};
  for (int64_t t = 1; t <= 3; ++t) {
    adamw({.lr = 1e-3, .step = t}, &w, &gradients[t - 1], &m, &v, 1);
    EXPECT_NEAR(w, expected[t - 1], 2e-6);
  }
}

// Every length takes whole lanes and a tail.
TEST(AdamW, Fp32FollowsTheFormula) {
  for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{37}}) {
    std::vector<float> w(n), m(n, 0.0F), v(n, 0.0F), g(n);
    std::vector<ExactAdamW> exact;
    for (size_t i = 0; i < n; ++i) {
      w[i] = 0.5F - 0.1F * static_cast<float>(i);
      exact.push_back({.w = w[i]});
    }
    for (int64_t t = 1; t <= 20; ++t) {
      const AdamWStep step{.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .step = t, .grad_scale = 0.25};
      for (size_t i = 0; i < n; ++i) {
        g[i] = gradient(i, t);
        exact[i].step(step, g[i]);
      }
      adamw(step, w.data(), g.data(), m.data(), v.data(), static_cast<int64_t>(n));
    }
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(w[i], exact[i].w, 2e-6 * std::max(1.0, std::abs(exact[i].w))) << i;
  }
}

TEST(AdamW, AMasterTrainsAsFp32Does) {
  constexpr int64_t kSize = 53;
  std::vector<float> w(kSize), m(kSize, 0.0F), v(kSize, 0.0F), m2 = m, v2 = v, g(kSize), joined(kSize);
  std::vector<Bf16> high(kSize);
  std::vector<uint16_t> low(kSize);
  for (int64_t i = 0; i < kSize; ++i) w[static_cast<size_t>(i)] = 1.0F / static_cast<float>(i + 1);
  split_master(w.data(), high.data(), low.data(), kSize);
  for (int64_t t = 1; t <= 10; ++t) {
    for (size_t i = 0; i < g.size(); ++i) g[i] = gradient(i, t);
    adamw({.lr = 1e-3, .step = t}, w.data(), g.data(), m.data(), v.data(), kSize);
    adamw({.lr = 1e-3, .step = t}, high.data(), low.data(), g.data(), m2.data(), v2.data(), kSize);
  }
  join_master(high.data(), low.data(), joined.data(), kSize);
  for (size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(joined[i], w[i], 1e-6 * std::abs(w[i]));  // compiled apart: products may be fused elsewhere
    EXPECT_NEAR(base::bf16_to_float(high[i].bits), w[i], std::abs(w[i]) / 256.0F);
  }
}

TEST(AdamW, PlainBf16RoundsOnceAStep) {
  constexpr int64_t kSize = 19;
  std::vector<float> w(kSize, 0.75F), m(kSize, 0.0F), v(kSize, 0.0F), g(kSize, 0.125F);
  std::vector<Bf16> bw(kSize, {base::float_to_bf16(0.75F)}), bm(kSize, {0}), bv(kSize, {0});
  const AdamWStep step{.lr = 0.1};
  adamw(step, w.data(), g.data(), m.data(), v.data(), kSize);
  adamw(step, bw.data(), g.data(), bm.data(), bv.data(), kSize);
  for (size_t i = 0; i < w.size(); ++i) {
    EXPECT_EQ(bw[i].bits, base::float_to_bf16(w[i]));
    EXPECT_EQ(bm[i].bits, base::float_to_bf16(m[i]));
    EXPECT_EQ(bv[i].bits, base::float_to_bf16(v[i]));
  }
}

TEST(Sgd, FollowsTorch) {
  constexpr size_t kSize = 21;
  std::vector<float> w(kSize, 1.0F), buf(kSize, std::nanf("")), g(kSize);
  std::vector<double> exact(kSize, 1.0), exact_buf(kSize, 0.0);
  for (int t = 0; t < 4; ++t) {
    const SgdStep step{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .is_first = t == 0, .grad_scale = 0.5};
    for (size_t i = 0; i < kSize; ++i) {
      g[i] = gradient(i, t);
      const double d = g[i] * step.grad_scale + step.weight_decay * exact[i];
      exact_buf[i] = t == 0 ? d : step.momentum * exact_buf[i] + d;
      exact[i] -= step.lr * exact_buf[i];
    }
    sgd(step, w.data(), g.data(), buf.data(), kSize);
  }
  for (size_t i = 0; i < kSize; ++i) EXPECT_NEAR(w[i], exact[i], 1e-6);
}

TEST(Sgd, NeedsNoBufferWithoutMomentum) {
  std::vector<float> w(18, 1.0F);
  const std::vector<float> g(18, 2.0F);
  sgd({.lr = 0.25}, w.data(), g.data(), nullptr, 18);
  for (const float x : w) EXPECT_EQ(x, 0.5F);
  std::vector<Bf16> b(18, {base::float_to_bf16(1.0F)});
  std::vector<uint16_t> low(18, 0);
  sgd({.lr = 0.25}, b.data(), low.data(), g.data(), nullptr, 18);
  for (const Bf16 x : b) EXPECT_EQ(x.bits, base::float_to_bf16(0.5F));
}

// Ties, carries into the exponent, negative numbers: the split loses nothing.
TEST(Master, SplitAndJoinKeepEveryBit) {
  std::vector<float> values;
  for (const uint32_t high : {0x0000U, 0x3f80U, 0x3f81U, 0x3fffU, 0x7f7fU, 0x8000U, 0xbf80U, 0xffffU - 0x81U}) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const uint32_t bits = (high << 16) | low;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  const auto n = static_cast<int64_t>(values.size());
  std::vector<Bf16> high(values.size());
  std::vector<uint16_t> low(values.size());
  std::vector<float> joined(values.size());
  split_master(values.data(), high.data(), low.data(), n);
  join_master(high.data(), low.data(), joined.data(), n);
  EXPECT_EQ(std::memcmp(values.data(), joined.data(), values.size() * sizeof(float)), 0);
}

TEST(SumOfSquares, IsInDoubleAndShowsWhatIsNotFinite) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{4097}}) {
    std::vector<float> x(static_cast<size_t>(n), 1.5F);
    EXPECT_EQ(sum_of_squares(x.data(), n), 2.25 * static_cast<double>(n));
  }
  std::vector<float> x(100, 1e30F);
  EXPECT_NEAR(sum_of_squares(x.data(), 100), 1e62, 1e56);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const size_t at : {size_t{0}, size_t{99}}) {
      x.assign(100, 1.0F);
      x[at] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares(x.data(), 100)));
    }
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
