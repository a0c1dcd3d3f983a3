// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/dtype.h"
#include "ops/cpu/expert_tiles.h"

namespace expertmesh::ops::cpu {
namespace {

double value(Bf16 x) { return base::bf16_to_float(x.bits); }

std::vector<Bf16> random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  std::vector<Bf16> matrix(static_cast<size_t>(rows * columns));
  uint64_t state = seed * 2654435761U + 1;
  for (Bf16& x : matrix) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    x.bits = base::float_to_bf16(static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0));
  }
  return matrix;
}

std::vector<Bf16> transposed(const std::vector<Bf16>& matrix, int64_t rows, int64_t columns) {
  std::vector<Bf16> result(matrix.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c)
      result[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * columns + c)];
  }
  return result;
}

// a [rows, depth], b [depth, columns]: every element within one bf16 rounding of the exact sum.
void expect_product(const std::vector<Bf16>& c, const std::vector<Bf16>& a, const std::vector<Bf16>& b, int64_t rows,
                    int64_t columns, int64_t depth) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double term =
            value(a[static_cast<size_t>(r * depth + k)]) * value(b[static_cast<size_t>(k * columns + n)]);
        sum += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(value(c[static_cast<size_t>(r * columns + n)]), sum, std::abs(sum) / 256 + size * 1e-6)
          << rows << "x" << columns << "x" << depth << " at " << r << ", " << n;
    }
  }
}

constexpr Bf16 kNan{0x7fc0};

// Every instruction set that this processor has.
class ExpertGemm : public testing::TestWithParam<const ExpertTiles*> {
 protected:
  void SetUp() override {
    if (!has_expert_gemm()) GTEST_SKIP() << "this CPU has no AVX2";
    if (GetParam() == &kExpertTilesAvx512 && !__builtin_cpu_supports("avx512bf16")) {
      GTEST_SKIP() << "this CPU has no AVX-512 BF16";
    }
    TEST_use_expert_tiles(GetParam());
  }
  void TearDown() override { TEST_use_expert_tiles(nullptr); }
};

INSTANTIATE_TEST_SUITE_P(Tiles, ExpertGemm, testing::Values(&kExpertTilesAvx512, &kExpertTilesAvx2),
                         [](const auto& tested) { return tested.param == &kExpertTilesAvx2 ? "Avx2" : "Avx512"; });

TEST_P(ExpertGemm, EverySize) {
  for (const int64_t rows : {1, 5, 6, 7, 13, 33}) {
    for (const int64_t columns : {1, 15, 16, 17, 37, 64, 65, 130}) {
      for (const int64_t depth : {1, 2, 7, 32, 37, 60, 66}) {
        const std::vector<Bf16> a = random_matrix(rows, depth, 1), b = random_matrix(depth, columns, 2);
        const std::vector<Bf16> b_t = transposed(b, depth, columns), a_t = transposed(a, rows, depth);
        Packed across, along, left;
        across.pack_transposed(b_t.data(), depth, columns, depth);
        along.pack(b.data(), columns, nullptr, columns, depth);
        left.pack(a_t.data(), rows, nullptr, rows, depth);
        for (int way = 0; way < 3; ++way) {
          std::vector<Bf16> c(static_cast<size_t>(rows * columns) + 1, kNan);
          if (way == 0) expert_gemm({a.data(), depth}, rows, across, {c.data(), columns});
          if (way == 1) expert_gemm({a.data(), depth}, rows, along, {c.data(), columns});
          if (way == 2) expert_gemm_transposed(left, along, c.data(), columns);
          expect_product(c, a, b, rows, columns, depth);
          EXPECT_EQ(c.back().bits, kNan.bits);  // nothing past the end
        }
      }
    }
  }
}

TEST_P(ExpertGemm, RowsThroughIndexLists) {
  const int64_t rows = 8, columns = 20, depth = 9;
  const std::vector<int64_t> from{11, 3, 3, 0, 7, 5, 2, 1}, to{7, 0, 6, 1, 5, 2, 4, 3};
  const std::vector<Bf16> a = random_matrix(12, depth, 3), b = random_matrix(depth, columns, 4);
  Packed packed, indexed;
  packed.pack(b.data(), columns, nullptr, columns, depth);
  std::vector<Bf16> c(static_cast<size_t>(rows * columns), kNan), picked, ordered;
  expert_gemm({a.data(), depth, from.data()}, rows, packed, {c.data(), columns, to.data()});
  for (size_t r = 0; r < from.size(); ++r) {
    picked.insert(picked.end(), a.begin() + from[r] * depth, a.begin() + (from[r] + 1) * depth);
    ordered.insert(ordered.end(), c.begin() + to[r] * columns, c.begin() + (to[r] + 1) * columns);
  }
  expect_product(ordered, picked, b, rows, columns, depth);

  // The same rows as the depth of a weight gradient.
  indexed.pack(a.data(), depth, from.data(), depth, rows);
  const std::vector<Bf16> right = random_matrix(rows, columns, 5);
  packed.pack(right.data(), columns, nullptr, columns, rows);
  std::vector<Bf16> grad(static_cast<size_t>(depth * columns), kNan);
  expert_gemm_transposed(indexed, packed, grad.data(), columns);
  expect_product(grad, transposed(picked, rows, depth), right, depth, columns, rows);
}

TEST_P(ExpertGemm, NoRowsGiveZeroGradients) {
  Packed left, right;
  left.pack(nullptr, 5, nullptr, 5, 0);
  right.pack(nullptr, 7, nullptr, 7, 0);
  std::vector<Bf16> grad(35, kNan);
  expert_gemm_transposed(left, right, grad.data(), 7);
  for (const Bf16 x : grad) EXPECT_EQ(x.bits, 0);
}

// A buffer that was used for something larger leaves nothing behind.
TEST_P(ExpertGemm, BuffersAreReused) {
  Packed packed;
  const std::vector<Bf16> large(static_cast<size_t>(100 * 100), kNan);
  packed.pack(large.data(), 100, nullptr, 100, 100);
  const std::vector<Bf16> a = random_matrix(3, 5, 6), b = random_matrix(5, 3, 7);
  packed.pack(b.data(), 3, nullptr, 3, 5);
  std::vector<Bf16> c(9, kNan);
  expert_gemm({a.data(), 5}, 3, packed, {c.data(), 3});
  expect_product(c, a, b, 3, 3, 5);
}

}  // namespace
}  // namespace expertmesh::ops::cpu
