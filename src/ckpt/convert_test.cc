// SPDX-License-Identifier: Apache-2.0
#include "ckpt/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace expertmesh::ckpt {
namespace {

template <typename To, typename From>
std::vector<To> convert(const std::vector<From>& from, DType from_type, DType to_type) {
  std::vector<To> to(from.size());
  convert_elements(from.data(), from_type, to.data(), to_type, static_cast<int64_t>(from.size()));
  return to;
}

// By the definition: sign, exponent with its bias, mantissa.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const double sign = ((bits >> (mantissa_bits + exponent_bits)) & 1U) != 0 ? -1 : 1;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

TEST(Convert, EveryF16) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto floats = convert<float>(all, DType::kF16, DType::kF32);
  for (uint32_t i = 0; i < 65536; ++i) {
    if ((i & 0x7c00U) == 0x7c00U) {
      EXPECT_EQ(std::isnan(floats[i]), (i & 0x3ffU) != 0);
      EXPECT_EQ(std::isinf(floats[i]), (i & 0x3ffU) == 0);
      EXPECT_EQ(std::signbit(floats[i]), (i & 0x8000U) != 0);
    } else {
      ASSERT_EQ(floats[i], decode(i, 5, 10)) << i;
      ASSERT_EQ(std::signbit(floats[i]), i >= 0x8000U) << i;
    }
  }
  const auto back = convert<uint16_t>(floats, DType::kF32, DType::kF16);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!std::isnan(floats[i])) {
      ASSERT_EQ(back[i], all[i]);
    }
  }
}

TEST(Convert, F16RoundsToNearestEven) {
  const float step = 0x1p-10F, tiny = 0x1p-24F;
  const auto halves = convert<uint16_t>(
      std::vector<float>{1 + step / 2, 1 + 1.5F * step, 1 + 0.51F * step, 65519.9F, 65520.0F, -1e9F, tiny / 2,
                         0.51F * tiny, 1.5F * tiny, std::numeric_limits<float>::quiet_NaN(), 0x1p-14F * (1 - 0x1p-12F)},
      DType::kF32, DType::kF16);
  EXPECT_EQ(halves, (std::vector<uint16_t>{0x3c00, 0x3c02, 0x3c01, 0x7bff, 0x7c00, 0xfc00, 0, 1, 2, 0x7e00, 0x0400}));
}

TEST(Convert, EveryF8) {
  std::vector<uint8_t> all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  const auto e4m3 = convert<float>(all, DType::kF8E4M3, DType::kF32);
  const auto e5m2 = convert<float>(all, DType::kF8E5M2, DType::kF32);
  for (uint32_t i = 0; i < 256; ++i) {
    if ((i & 0x7fU) == 0x7fU) {
      EXPECT_TRUE(std::isnan(e4m3[i]));
    } else {
      EXPECT_EQ(e4m3[i], decode(i, 4, 3)) << i;
    }
    if ((i & 0x7cU) == 0x7cU) {
      EXPECT_EQ(std::isnan(e5m2[i]), (i & 3U) != 0);
    } else {
      EXPECT_EQ(e5m2[i], decode(i, 5, 2)) << i;
    }
  }
}

TEST(Convert, Bf16BothWays) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto floats = convert<float>(all, DType::kBF16, DType::kF32);
  const auto back = convert<uint16_t>(floats, DType::kF32, DType::kBF16);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), static_cast<uint32_t>(i) << 16);
    if (std::isnan(floats[i])) {
      ASSERT_TRUE(std::isnan(base::bf16_to_float(back[i])));
    } else {
      ASSERT_EQ(back[i], all[i]);
    }
  }
  std::vector<float> between;
  for (uint32_t bits = 0x3f000000U; bits < 0x3f100000U; bits += 127) between.push_back(std::bit_cast<float>(bits));
  const auto rounded = convert<uint16_t>(between, DType::kF32, DType::kBF16);
  for (size_t i = 0; i < between.size(); ++i) ASSERT_EQ(rounded[i], base::float_to_bf16(between[i]));
}

TEST(Convert, WideAndNarrow) {
  const std::vector<double> doubles{1.0, -0.1, 1e300, 1e-300};
  const auto floats = convert<float>(doubles, DType::kF64, DType::kF32);
  EXPECT_EQ(floats, (std::vector<float>{1.0F, -0.1F, std::numeric_limits<float>::infinity(), 0.0F}));
  EXPECT_EQ(convert<double>(std::vector<float>{0.1F}, DType::kF32, DType::kF64), std::vector<double>{0.1F});
  const std::vector<uint16_t> half{0x3c00};  // F16 to BF16
  EXPECT_EQ(convert<uint16_t>(half, DType::kF16, DType::kBF16), std::vector<uint16_t>{0x3f80});
}

TEST(Convert, KnowsWhatItCan) {
  for (const DType from : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_TRUE(can_convert(from, DType::kF32));
    EXPECT_TRUE(can_convert(from, DType::kBF16));
    EXPECT_TRUE(can_convert(from, from));
  }
  EXPECT_TRUE(can_convert(DType::kI64, DType::kI64));
  EXPECT_FALSE(can_convert(DType::kI64, DType::kF32));
  EXPECT_FALSE(can_convert(DType::kF32, DType::kF8E4M3));
  EXPECT_FALSE(can_convert(DType::kF64, DType::kF16));
}

}  // namespace
}  // namespace expertmesh::ckpt
