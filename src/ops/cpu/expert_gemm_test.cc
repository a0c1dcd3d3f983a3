// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/dtype.h"
#include "ops/cpu/amx_trapped.h"
#include "ops/cpu/expert_kernels.h"

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

// On a cache line of its own, filled with NaN.
struct Scratch {
  explicit Scratch(int64_t elements) : storage(static_cast<size_t>(elements) + 32, kNan) {}
  Bf16* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + (64 - address % 64) % 64 / sizeof(Bf16);
  }
  uint32_t* packed() { return reinterpret_cast<uint32_t*>(data()); }
  std::vector<Bf16> storage;
};

// Every instruction set that this processor has; AMX without it on emulated tiles.
class ExpertGemm : public testing::TestWithParam<const ExpertKernels*> {
 protected:
  void SetUp() override {
    if (GetParam() == &kExpertKernelsAmx && !has_amx() && kExpertKernelsAvx512Bf16.runs_here()) {
      trapped_.emplace();
    } else if (!GetParam()->runs_here()) {
      GTEST_SKIP() << "this CPU has no " << GetParam()->name;
    }
    TEST_use_expert_kernels(GetParam());
  }
  void TearDown() override { TEST_use_expert_kernels(nullptr); }

 private:
  std::optional<TrappedTiles> trapped_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, ExpertGemm, testing::ValuesIn(kExpertKernels),
                         [](const auto& tested) { return std::string(tested.param->name); });

// Rows through lists, and a stride that leaves them on no boundary.
struct Listed {
  Listed(const std::vector<Bf16>& matrix, int64_t rows, int64_t columns)
      : stride(columns + 3), storage(static_cast<size_t>(rows * (columns + 3) + 1), kNan) {
    for (int64_t r = 0; r < rows; ++r) {
      index.push_back((r * 7 + 3) % rows == r ? r : rows - 1 - r);
      std::copy_n(matrix.begin() + r * columns, columns, storage.begin() + 1 + index.back() * stride);
    }
  }
  IndexedRows<const Bf16> rows() const { return {storage.data() + 1, stride, index.data()}; }
  IndexedRows<Bf16> mutable_rows() { return {storage.data() + 1, stride, index.data()}; }
  // The rows in order; everything between them must still be NaN.
  std::vector<Bf16> taken(int64_t columns) const {
    std::vector<Bf16> result;
    for (const int64_t row : index) {
      const auto from = storage.begin() + 1 + row * stride;
      result.insert(result.end(), from, from + columns);
      for (int64_t i = columns; i < stride && from + i != storage.end(); ++i) EXPECT_EQ(from[i].bits, kNan.bits);
    }
    return result;
  }
  int64_t stride;
  std::vector<int64_t> index;
  std::vector<Bf16> storage;
};

std::vector<Bf16> nans(int64_t elements) { return std::vector<Bf16>(static_cast<size_t>(elements), kNan); }

// Packed in both ways, times rows in every size of tile.
TEST_P(ExpertGemm, Products) {
  const ExpertKernels& kernels = *GetParam();
  for (const int64_t rows : {1, 5, 6, 7, 11, 13, 33}) {
    for (const int64_t columns : {1, 15, 16, 17, 32, 37, 48, 64, 65, 130}) {
      for (const int64_t depth : {0, 1, 2, 7, 32, 37, 66}) {
        const std::vector<Bf16> a = random_matrix(rows, depth, 1), b = random_matrix(depth, columns, 2);
        const Listed left(a, rows, depth), along(b, depth, columns);
        const Listed across(transposed(b, depth, columns), columns, depth);
        for (const bool is_across : {false, true}) {
          Scratch packed((columns + 16) * (depth + 1));
          if (is_across) {
            kernels.pack_columns(across.rows(), columns, depth, packed.packed());
          } else {
            kernels.pack_rows(along.rows(), columns, depth, packed.packed());
          }
          Listed c(nans(rows * columns), rows, columns);
          kernels.multiply({.a = left.rows(),
                            .b = packed.packed(),
                            .c = c.mutable_rows(),
                            .rows = rows,
                            .columns = columns,
                            .depth = depth,
                            .is_a_far = depth == 66,
                            .is_read_late = depth == 32,
                            .pack = {}});
          expect_product(c.taken(columns), a, b, rows, columns, depth);
        }
      }
    }
  }
}

TEST_P(ExpertGemm, Transpose) {
  for (const int64_t rows : {0, 1, 2, 15, 16, 17, 31, 33, 70}) {
    for (const int64_t columns : {1, 7, 8, 9, 16, 17, 40}) {
      const std::vector<Bf16> in = random_matrix(rows, columns, 8);
      Listed out(nans(rows * columns), columns, rows);
      GetParam()->transpose(Listed(in, rows, columns).rows(), rows, columns, out.mutable_rows(), columns == 16);
      const std::vector<Bf16> got = out.taken(rows), expected = transposed(in, rows, columns);
      ASSERT_TRUE(std::ranges::equal(got, expected, {}, &Bf16::bits, &Bf16::bits)) << rows << "x" << columns;
    }
  }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST_P(ExpertGemm, Forward) {
  for (const auto& [hidden, width] : {std::pair<int64_t, int64_t>{60, 37}, {1, 1}, {130, 64}, {33, 50}}) {
    for (const int64_t rows : {0, 1, 7, 16, 33, 80, 300}) {
      const std::vector<Bf16> x = random_matrix(rows, hidden, 1), gate_up_proj = random_matrix(2 * width, hidden, 2),
                              down_proj = random_matrix(hidden, width, 3);
      const Listed from(x, rows, hidden);
      Listed gate_up(nans(rows * 2 * width), rows, 2 * width), y(nans(rows * hidden), rows, hidden);
      Scratch scratch(expert_forward_scratch(hidden, width, rows));
      expert_forward({.hidden = hidden,
                      .width = width,
                      .gate_up_proj = gate_up_proj.data(),
                      .down_proj = down_proj.data(),
                      .rows = rows,
                      .x = from.rows(),
                      .gate_up = gate_up.mutable_rows(),
                      .y = y.mutable_rows(),
                      .is_read_late = rows == 80,
                      .scratch = scratch.data()});
      const std::vector<Bf16> between = gate_up.taken(2 * width);
      expect_product(between, x, transposed(gate_up_proj, 2 * width, hidden), rows, 2 * width, hidden);
      // From the rounded gate and up; what is between the two products is rounded once more.
      const std::vector<Bf16> result = y.taken(hidden);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t h = 0; h < hidden; ++h) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < width; ++i) {
            const double gate = value(between[static_cast<size_t>(r * 2 * width + i)]),
                         up = value(between[static_cast<size_t>(r * 2 * width + width + i)]),
                         term = silu(gate) * up * value(down_proj[static_cast<size_t>(h * width + i)]);
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(value(result[static_cast<size_t>(r * hidden + h)]), sum, std::abs(sum) / 256 + size / 256)
              << rows << " rows, at " << r << ", " << h;
        }
      }
    }
  }
}

TEST_P(ExpertGemm, InputGradients) {
  for (const auto& [depth, columns] : {std::pair<int64_t, int64_t>{60, 37}, {1, 1}, {37, 300}, {74, 60}}) {
    for (const int64_t rows : {0, 1, 7, 33, 300}) {
      const std::vector<Bf16> a = random_matrix(rows, depth, 4), weights = random_matrix(depth, columns, 5);
      const Listed from(a, rows, depth);
      Listed c(nans(rows * columns), rows, columns);
      Scratch scratch(expert_input_grad_scratch(columns, depth, rows));
      expert_input_grad({.a = from.rows(),
                         .weights = weights.data(),
                         .c = c.mutable_rows(),
                         .rows = rows,
                         .columns = columns,
                         .depth = depth,
                         .scratch = scratch.data()});
      expect_product(c.taken(columns), a, weights, rows, columns, depth);
    }
  }
}

// Without rows: zeros.
TEST_P(ExpertGemm, WeightGradients) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{60, 37}, {1, 1}, {37, 300}, {74, 64}}) {
    for (const int64_t rows : {0, 1, 2, 7, 33, 300}) {
      for (const bool is_read_late : {false, true}) {
        const std::vector<Bf16> left = random_matrix(rows, m, 6), right = random_matrix(rows, n, 7);
        const Listed left_rows(left, rows, m), right_rows(right, rows, n);
        std::vector<Bf16> c(static_cast<size_t>(m * n) + 1, kNan);
        Scratch scratch(expert_weight_grad_scratch(m, n, rows));
        expert_weight_grad({.left = left_rows.rows(),
                            .right = right_rows.rows(),
                            .c = c.data(),
                            .rows = rows,
                            .m = m,
                            .n = n,
                            .is_read_late = is_read_late,
                            .scratch = scratch.data()});
        expect_product(c, transposed(left, rows, m), right, m, n, rows);
        EXPECT_EQ(c.back().bits, kNan.bits);
      }
    }
  }
}

// A row's bits do not depend on the rows beside it.
TEST_P(ExpertGemm, PiecesGiveTheSameBits) {
  const int64_t hidden = 70, width = 45, rows = 77;
  const std::vector<Bf16> x = random_matrix(rows, hidden, 1), gate_up_proj = random_matrix(2 * width, hidden, 2),
                          down_proj = random_matrix(hidden, width, 3), grad = random_matrix(rows, hidden, 4);
  const auto run = [&](const std::vector<int64_t>& pieces) {
    std::vector<Bf16> gate_up(static_cast<size_t>(rows * 2 * width)), result(static_cast<size_t>(rows * hidden)),
        grads(static_cast<size_t>(rows * width));
    Scratch scratch(
        std::max(expert_forward_scratch(hidden, width, rows), expert_input_grad_scratch(width, hidden, rows)));
    int64_t first = 0;
    for (const int64_t count : pieces) {
      expert_forward({.hidden = hidden,
                      .width = width,
                      .gate_up_proj = gate_up_proj.data(),
                      .down_proj = down_proj.data(),
                      .rows = count,
                      .x = {x.data() + first * hidden, hidden, nullptr},
                      .gate_up = {gate_up.data() + first * 2 * width, 2 * width, nullptr},
                      .y = {result.data() + first * hidden, hidden, nullptr},
                      .is_read_late = false,
                      .scratch = scratch.data()});
      expert_input_grad({.a = {grad.data() + first * hidden, hidden, nullptr},
                         .weights = down_proj.data(),
                         .c = {grads.data() + first * width, width, nullptr},
                         .rows = count,
                         .columns = width,
                         .depth = hidden,
                         .scratch = scratch.data()});
      first += count;
    }
    result.insert(result.end(), grads.begin(), grads.end());
    return result;
  };
  const std::vector<Bf16> whole = run({rows});
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{1, 76}, {16, 33, 28}, {7, 7, 7, 50, 6}, {76, 1}}) {
    ASSERT_TRUE(std::ranges::equal(run(pieces), whole, {}, &Bf16::bits, &Bf16::bits)) << pieces.size() << " pieces";
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
