// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/dtype.h"

namespace expertmesh::base {
namespace {

TEST(Error, Grammar) {
  Error error = make_error(Code::kConfig, "config/ep_size", "ep_size {} does not divide dp_size {}", 3, 8);
  EXPECT_EQ(error.text(), "error[config/ep_size] ep_size 3 does not divide dp_size 8");
  error.at("config.yaml:14:12").hint("Use 1, 2, 4 or 8.");
  EXPECT_STREQ(error.what(),
               "error[config/ep_size] config.yaml:14:12: ep_size 3 does not divide dp_size 8. Use 1, 2, 4 or 8.");
  EXPECT_EQ(error.reason(), "config.yaml:14:12: ep_size 3 does not divide dp_size 8. Use 1, 2, 4 or 8.");
  EXPECT_FALSE(error.rank());
  error.on_rank(2, "dp 1, ep 0", 7);
  EXPECT_EQ(error.rank(), 2);
  EXPECT_EQ(error.step(), 7);
}

TEST(Check, NamesTheExpressionAndTheValues) {
  const int rows = 3;
  EXPECT_NO_THROW(EXPERTMESH_CHECK(rows == 3));
  try {
    EXPERTMESH_CHECK(rows == 4, "{} rows", rows);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInternal);
    EXPECT_EQ(error.message(), "check failed: rows == 4: 3 rows");
  }
}

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(try_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bytes(dtype), 0U);
  }
  for (const char* name : {"", "f32", "F31", "F32 ", "?"}) EXPECT_FALSE(try_dtype(name)) << name;
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3f80);             // half way, to even
  EXPECT_EQ(float_to_bf16(1.0F + 3 * 0x1p-8F), 0x3f82);         // half way, to even
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F + 0x1p-20F), 0x3f81);  // above half
  EXPECT_EQ(float_to_bf16(3.4e38F), 0x7f80);                    // to infinity
  EXPECT_TRUE(bf16_to_float(float_to_bf16(__builtin_nanf(""))) != bf16_to_float(float_to_bf16(__builtin_nanf(""))));
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(float_to_bf16(bf16_to_float(half)), half);
  }
}

}  // namespace
}  // namespace expertmesh::base
