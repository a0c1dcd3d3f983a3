// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/flush_subnormals.h"

#include <gtest/gtest.h>

#include <limits>

namespace expertmesh::ops::cpu {
namespace {

// Neither is known to the compiler.
float product(float a, float b) {
  volatile float left = a, right = b;
  return left * right;
}

TEST(FlushSubnormals, OnlyWhileItLives) {
  constexpr float kLeast = std::numeric_limits<float>::min(), kSubnormal = std::numeric_limits<float>::denorm_min();
  {
    const FlushSubnormals flush;
    EXPECT_EQ(product(kLeast, 0.5F), 0.0F);
    EXPECT_EQ(product(kSubnormal, 1e30F), 0.0F);
    EXPECT_EQ(product(kLeast, 1.0F), kLeast);
  }
  EXPECT_GT(product(kLeast, 0.5F), 0.0F);
  EXPECT_GT(product(kSubnormal, 1e30F), 0.0F);
}

}  // namespace
}  // namespace expertmesh::ops::cpu
