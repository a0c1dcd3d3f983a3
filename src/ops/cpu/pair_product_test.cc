// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/pair_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/isa_testing.h"
#include "ops/cpu/tile_product.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double value(Bf16 x) { return base::bf16_to_float(x.bits); }

// Starts at an odd element, as views of tensors may.
std::vector<Bf16> random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  std::vector<Bf16> matrix(static_cast<size_t>(rows * columns) + 1);
  uint64_t state = seed * 2654435761U + 1;
  for (Bf16& x : matrix) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    x.bits = base::float_to_bf16(static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0));
  }
  return matrix;
}

class PairProducts : public testing::TestWithParam<IsaLevel> {
 protected:
  void SetUp() override {
    if (!processor_has(GetParam())) GTEST_SKIP() << "this CPU has no " << GetParam().name;
    use_.emplace(GetParam());
    ASSERT_TRUE(has_pair_products());
    ASSERT_EQ(multiplies_on_tiles(), GetParam().sets.may_use_tiles);
  }

 private:
  std::optional<UseIsa> use_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, PairProducts,
                         testing::Values(IsaLevel{"Avx512", {Isa::kAvx512}},
                                         IsaLevel{"Avx512Bf16", {Isa::kAvx512, true, true}},
                                         IsaLevel{"Amx", {Isa::kAvx512, true, true, true}}),
                         [](const auto& tested) { return tested.param.name; });

// C = A B from A's rows, and from two of its rows side by side; B from its rows, and from those of its transpose.
TEST_P(PairProducts, EverySize) {
  for (const int64_t rows : {1, 5, 6, 7, 13, 37}) {
    for (const int64_t columns : {1, 16, 17, 60, 64, 65, 130}) {
      for (const int64_t depth : {1, 2, 7, 60, 66, 300}) {
        const std::vector<Bf16> left = random_matrix(rows, depth, 1), right = random_matrix(depth, columns, 2);
        const Bf16 *a = left.data() + 1, *b = right.data() + 1;
        std::vector<Bf16> b_transposed(right.size()), a_transposed(left.size());
        for (int64_t k = 0; k < depth; ++k) {
          for (int64_t n = 0; n < columns; ++n) b_transposed[static_cast<size_t>(n * depth + k)] = b[k * columns + n];
          for (int64_t r = 0; r < rows; ++r) a_transposed[static_cast<size_t>(k * rows + r)] = a[r * depth + k];
        }
        const int64_t pairs = (depth + 1) / 2, width = round_up(columns, kLanes), height = round_up(rows, kLanes);
        const auto size = static_cast<size_t>(pairs * width);
        std::vector<uint32_t> by_rows(size, ~0U), by_columns(size, ~0U), padded(static_cast<size_t>(rows * pairs), 0);
        std::vector<uint32_t> a_pairs(static_cast<size_t>(pairs * height), ~0U);
        pack_pairs(b, columns, columns, depth, by_rows.data(), width, pairs);
        pack_pairs_transposed(b_transposed.data(), depth, columns, depth, by_columns.data(), width, pairs);
        ASSERT_EQ(by_rows, by_columns) << columns << "x" << depth;
        for (int64_t r = 0; r < rows; ++r) {
          std::memcpy(padded.data() + r * pairs, a + r * depth, static_cast<size_t>(depth) * sizeof(Bf16));
        }
        pack_pairs(a_transposed.data(), rows, rows, depth, a_pairs.data(), height, pairs);

        for (const PairRows rows_of_a : {PairRows{padded.data(), pairs, 1}, PairRows{a_pairs.data(), 1, height}}) {
          for (const bool fetches : {false, true}) {
            const int64_t stride = width + 3;
            std::vector<float> c(static_cast<size_t>(rows * stride), kNan);
            PairProduct product{.a = rows_of_a,
                                .b = by_rows.data(),
                                .b_stride = width,
                                .c = c.data(),
                                .c_stride = stride,
                                .rows = rows,
                                .columns = width,
                                .pairs = pairs,
                                .adds = false,
                                .adds_to_memory = false,
                                .stream = fetches ? by_rows.data() : nullptr,
                                .stream_bytes = fetches ? static_cast<int64_t>(size * sizeof(uint32_t)) : 0};
            multiply_pairs(product);
            product.adds = true;
            product.adds_to_memory = fetches;
            multiply_pairs(product);  // the second is added to the first
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t n = 0; n < stride; ++n) {
                const float got = c[static_cast<size_t>(r * stride + n)];
                if (n >= width) {
                  ASSERT_TRUE(std::isnan(got)) << "past the columns";
                  continue;
                }
                double sum = 0, magnitude = 1e-30;
                for (int64_t k = 0; n < columns && k < depth; ++k) {
                  const double term = value(a[r * depth + k]) * value(b[k * columns + n]);
                  sum += 2 * term;
                  magnitude += std::abs(term);
                }
                ASSERT_NEAR(got, sum, 1e-6 * magnitude) << rows << "x" << columns << "x" << depth;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(PairProducts, NoRowsAndNoDepth) {
  std::vector<float> c(16, kNan);
  const std::vector<uint32_t> b(16, 0);
  multiply_pairs(
      {.a = {}, .b = b.data(), .b_stride = 16, .c = c.data(), .c_stride = 16, .rows = 0, .columns = 16, .pairs = 1});
  for (const float x : c) EXPECT_TRUE(std::isnan(x));
  multiply_pairs({.a = {.data = b.data(), .row_stride = 1, .step = 1},
                  .b = b.data(),
                  .b_stride = 16,
                  .c = c.data(),
                  .c_stride = 16,
                  .rows = 1,
                  .columns = 16,
                  .pairs = 0});
  for (const float x : c) EXPECT_EQ(x, 0.0F);
}

}  // namespace
}  // namespace expertmesh::ops::cpu
