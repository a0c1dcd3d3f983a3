// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/vec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace expertmesh::ops::cpu {
namespace {

std::vector<float> exp_of(std::vector<float> x) {
  x.resize((x.size() + kLanes - 1) / kLanes * kLanes);
  for (size_t i = 0; i < x.size(); i += kLanes) store(&x[i], exp(load(&x[i])));
  return x;
}

TEST(Exp, IsWithinOneUlp) {
  std::vector<float> x;
  for (double value = -86.28; value < 88.72; value += 0.00137) x.push_back(static_cast<float>(value));
  const std::vector<float> y = exp_of(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], exact, 1.2e-7 * exact) << x[i];
  }
}

TEST(Exp, HandlesTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> y = exp_of({0.0F, -kInf, kInf, 89.0F, 1e30F, -87.0F, -1e30F, std::nanf("")});
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 0.0F);
  EXPECT_EQ(y[2], kInf);
  EXPECT_EQ(y[3], kInf);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], 0.0F);
  EXPECT_EQ(y[6], 0.0F);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST(Bf16Lanes, RoundAsTheBaseRoomDoes) {
  const std::vector<float> x = {0.0F,
                                -0.0F,
                                1.0F,
                                1.00390625F,
                                1.01171875F,
                                3.0e38F,
                                3.4028235e38F,
                                1e-40F,
                                -1e-45F,
                                std::nanf(""),
                                -65504.0F,
                                0.1F,
                                std::numeric_limits<float>::infinity(),
                                -3.5F,
                                1e-38F,
                                7.0F};
  ASSERT_EQ(x.size(), static_cast<size_t>(kLanes));
  Bf16 narrow[kLanes];
  store(narrow, load(x.data()));
  float wide[kLanes];
  store(wide, load(narrow));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t expected = base::float_to_bf16(x[i]);
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(wide[i]));
    } else {
      EXPECT_EQ(narrow[i].bits, expected) << x[i];
      EXPECT_EQ(wide[i], base::bf16_to_float(expected)) << x[i];
    }
  }
}

TEST(PartialLanes, TouchOnlyTheirElements) {
  for (int64_t n = 1; n <= kLanes; ++n) {
    std::vector<float> in(static_cast<size_t>(n), 2.0F), out(kLanes + 1, -1.0F);
    const Vec v = load(in.data(), n, 5.0F);
    store(out.data(), v + 1.0F, n);
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t i = 0; i < kLanes; ++i) {
      EXPECT_EQ(lanes[i], i < n ? 2.0F : 5.0F);
      EXPECT_EQ(out[static_cast<size_t>(i)], i < n ? 3.0F : -1.0F);
    }
  }
}

TEST(Reductions, SumAndMax) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>((i * 7) % 16) - 3.0F;
  EXPECT_EQ(sum(load(lanes)), 72.0F);
  EXPECT_EQ(max(load(lanes)), 12.0F);
}

}  // namespace
}  // namespace expertmesh::ops::cpu
