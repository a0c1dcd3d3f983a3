// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/few_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/split_rows.h"
#include "ops/cpu/tile_product.h"

namespace expertmesh::ops::cpu {
namespace {

double value(float x) { return x; }
double value(Bf16 x) { return base::bf16_to_float(x.bits); }
void assign(float& to, float x) { to = x; }
void assign(Bf16& to, float x) { to.bits = base::float_to_bf16(x); }

template <typename T>
std::vector<T> random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  std::vector<T> matrix(static_cast<size_t>(rows * columns));
  uint64_t state = seed;
  for (T& x : matrix) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    assign(x, static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0));
  }
  return matrix;
}

std::vector<Isa> instruction_sets() {
  std::vector<Isa> sets = {Isa::kBaseline};
  if (processor_isa() >= Isa::kAvx2) sets.push_back(Isa::kAvx2);
  if (processor_isa() >= Isa::kAvx512) sets.push_back(Isa::kAvx512);
  return sets;
}

// x, w, and a y that nobody has written.
template <typename T>
struct Case {
  int64_t rows, columns, depth, x_stride = round_up(depth, kSplit), y_stride = columns + 3;
  std::vector<T> x, w;
  std::vector<float> wide_x, y;

  Case(int64_t num_rows, int64_t num_columns, int64_t k)
      : rows(num_rows),
        columns(num_columns),
        depth(k),
        x(random_matrix<T>(rows, depth, 1)),
        w(random_matrix<T>(columns, depth, 2)),
        wide_x(static_cast<size_t>(rows * x_stride), NAN),
        y(static_cast<size_t>(rows * y_stride), NAN) {
    for (int64_t r = 0; r < rows; ++r) widen_row(x.data() + r * depth, depth, wide_x.data() + r * x_stride);
  }

  FewRows<T> product() { return {wide_x.data(), x_stride, rows, w.data(), depth, columns, depth, y.data(), y_stride}; }

  void expect_sums() const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < depth; ++k) {
          const double term =
              value(x[static_cast<size_t>(r * depth + k)]) * value(w[static_cast<size_t>(c * depth + k)]);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[static_cast<size_t>(r * y_stride + c)], sum, size * 1e-6)
            << rows << "x" << columns << "x" << depth << " at " << r << ", " << c;
      }
      for (int64_t c = columns; c < y_stride; ++c) ASSERT_TRUE(std::isnan(y[static_cast<size_t>(r * y_stride + c)]));
    }
  }
};

template <typename T>
class FewRowProduct : public testing::Test {};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(FewRowProduct, Types);

TYPED_TEST(FewRowProduct, EverySize) {
  for (const Isa isa : instruction_sets()) {
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 8, 9}) {
      for (const int64_t columns : {0, 1, 3, 4, 5, 30}) {
        for (const int64_t depth : {0, 1, 4, 15, 16, 17, 40, 128}) {
          Case<TypeParam> c(rows, columns, depth);
          few_row_product(c.product(), isa);
          c.expect_sums();
        }
      }
    }
  }
}

TYPED_TEST(FewRowProduct, ARowIsTheSameAloneAndAColumnToo) {
  Case<TypeParam> all(7, 10, 50), alone = all;
  few_row_product(all.product());
  for (int64_t r = 0; r < all.rows; ++r) {
    for (int64_t c = 0; c < all.columns; ++c) {
      FewRows<TypeParam> one = alone.product();
      one.x += r * one.x_stride;
      one.w += c * one.w_stride;
      one.y += r * one.y_stride + c;
      one.rows = one.columns = 1;
      few_row_product(one);
      const auto at = static_cast<size_t>(r * all.y_stride + c);
      EXPECT_EQ(alone.y[at], all.y[at]) << r << ", " << c;
    }
  }
}

template <typename T>
class SplitRow : public testing::Test {};
TYPED_TEST_SUITE(SplitRow, Types);

TYPED_TEST(SplitRow, ComesBackAndIsPaddedWithZeros) {
  for (const int64_t size : {0, 1, 15, 16, 31, 32, 33, 70}) {
    const std::vector<TypeParam> row = random_matrix<TypeParam>(1, size, 3);
    std::vector<float> wide(static_cast<size_t>(round_up(size, kSplit)) + 1, NAN);
    widen_row(row.data(), size, wide.data());
    EXPECT_TRUE(std::isnan(wide.back()));
    wide.pop_back();
    double sum = 0, wide_sum = 0;
    for (const TypeParam x : row) sum += value(x);
    for (const float x : wide) wide_sum += x;
    EXPECT_NEAR(wide_sum, sum, 1e-9);
    std::vector<TypeParam> back(static_cast<size_t>(size) + 1);
    assign(back.back(), 7.0F);
    narrow_row(wide.data(), size, back.data());
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(value(back[static_cast<size_t>(i)]), value(row[static_cast<size_t>(i)])) << i << " of " << size;
    }
    EXPECT_EQ(value(back.back()), 7.0);
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
