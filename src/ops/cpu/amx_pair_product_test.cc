// SPDX-License-Identifier: Apache-2.0
// The template on emulated tiles, and the code that ships on the processor's own, or trapped.
#include "ops/cpu/amx_pair_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/amx_emulated.h"
#include "ops/cpu/each_amx_engine.h"
#include "ops/cpu/guarded_buffer.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr BfPair kNanPair = 0x7fc07fc0;
constexpr float kGuard = 42.0F;

uint32_t random_pair(uint64_t& state) {
  uint32_t pair = 0;
  for (int half = 0; half < 2; ++half) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto x = static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0);
    pair |= static_cast<uint32_t>(base::float_to_bf16(x)) << (16 * half);
  }
  return pair;
}

double dot(BfPair a, BfPair b) {
  const auto value = [](uint32_t bits) {
    return static_cast<double>(base::bf16_to_float(static_cast<uint16_t>(bits)));
  };
  return value(a & 0xffff) * value(b & 0xffff) + value(a >> 16) * value(b >> 16);
}

// Which way A lies.
enum class Lie { kRows, kPairs, kApart };

// Matrices that end where memory does; NaNs and guards between their rows.
class Case {
 public:
  Case(int64_t rows, int64_t columns, int64_t pairs, Lie lie, bool adds)
      : product_(shape(rows, columns, pairs, lie, adds)),
        a_(size(rows, product_.a.row_stride, pairs, product_.a.step), Edge::kEnd),
        b_(size(pairs, product_.b_stride, columns, 1), Edge::kEnd),
        c_(size(rows, product_.c_stride, columns, 1), Edge::kEnd) {
    product_.a.data = a_.data();
    product_.b = b_.data();
    product_.c = c_.data();
    uint64_t state = static_cast<uint64_t>(rows * 1000 + columns * 10 + pairs);
    for (BfPair& x : a_.all()) x = kNanPair;
    for (BfPair& x : b_.all()) x = kNanPair;
    for (float& x : c_.all()) x = kGuard;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t p = 0; p < pairs; ++p)
        a_.data()[r * product_.a.row_stride + p * product_.a.step] = random_pair(state);
      for (int64_t n = 0; n < columns; ++n) c(r, n) = adds ? static_cast<float>(r - n) : NAN;
    }
    for (int64_t p = 0; p < pairs; ++p) {
      for (int64_t n = 0; n < columns; ++n) b_.data()[p * product_.b_stride + n] = random_pair(state);
    }
  }

  const PairProduct& product() const { return product_; }

  void expect_product() const {
    for (int64_t r = 0; r < product_.rows; ++r) {
      for (int64_t n = 0; n < product_.columns; ++n) {
        double sum = product_.adds ? static_cast<double>(r - n) : 0.0;
        for (int64_t p = 0; p < product_.pairs; ++p) {
          sum += dot(a_.data()[r * product_.a.row_stride + p * product_.a.step], b_.data()[p * product_.b_stride + n]);
        }
        ASSERT_NEAR(static_cast<double>(c(r, n)), sum, 2e-6 * static_cast<double>(product_.pairs + 100))
            << product_.rows << " x " << product_.columns << " x " << product_.pairs << " at " << r << ", " << n;
      }
      for (int64_t n = product_.columns; r + 1 < product_.rows && n < product_.c_stride; ++n) {
        ASSERT_EQ(c(r, n), kGuard) << "behind row " << r;
      }
    }
  }

 private:
  static PairProduct shape(int64_t rows, int64_t columns, int64_t pairs, Lie lie, bool adds) {
    const bool is_turned = lie == Lie::kPairs, is_apart = lie == Lie::kApart;
    return {.a = {.data = nullptr,
                  .row_stride = is_turned  ? 1
                                : is_apart ? 2 * pairs + 1
                                           : pairs + 3,
                  .step = is_turned  ? rows + 3
                          : is_apart ? 2
                                     : 1},
            .b = nullptr,
            .b_stride = columns + 16,
            .c = nullptr,
            .c_stride = columns + 5,
            .rows = rows,
            .columns = columns,
            .pairs = pairs,
            .adds = adds};
  }
  static size_t size(int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride) {
    if (rows == 0) return 0;
    return static_cast<size_t>((rows - 1) * row_stride + (columns > 0 ? (columns - 1) * column_stride + 1 : 0));
  }
  float& c(int64_t r, int64_t n) const { return c_.data()[r * product_.c_stride + n]; }

  PairProduct product_;
  GuardedBuffer<uint32_t> a_, b_;
  GuardedBuffer<float> c_;
};

class PairProductAmx : public EachAmxEngine {
 protected:
  void run(const Case& tested) const {
    if (ships()) {
      multiply_pairs_amx(tested.product());
    } else {
      multiply_pairs_on_tiles<EmulatedTiles>(tested.product());
    }
    EXPECT_FALSE(tile_file().is_configured());
    tested.expect_product();
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, PairProductAmx, testing::Bool(), PairProductAmx::name);

TEST_P(PairProductAmx, EverySize) {
  for (const Lie lie : {Lie::kRows, Lie::kPairs, Lie::kApart}) {
    for (const bool adds : {false, true}) {
      for (const int64_t rows : {0, 1, 16, 17, 32, 37, 64}) {
        for (const int64_t columns : {0, 16, 32, 48, 64}) {
          for (const int64_t pairs : {0, 1, 15, 16, 17, 32, 45}) run(Case(rows, columns, pairs, lie, adds));
        }
      }
    }
  }
}

// More columns and pairs than meet at a time.
TEST_P(PairProductAmx, Large) {
  for (const Lie lie : {Lie::kRows, Lie::kPairs}) {
    run(Case(48, kAmxPairColumns + 48, 40, lie, true));
    run(Case(33, 48, kAmxPairSteps * kAmxRows, lie, false));
    run(Case(16, 32, kAmxPairSteps * kAmxRows + 20, lie, false));
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
