// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/amx_product.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/amx_emulated.h"
#include "ops/cpu/amx_trapped.h"

namespace expertmesh::ops::cpu {
namespace {

struct Counter {
  int steps = 0, blocks = 0;
  void step() { ++steps; }
  void stored() { ++blocks; }
};

class Blocks : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !has_amx()) trapped_.emplace();
  }
  void multiply(const TileBlock& block, int64_t row_tiles, int64_t column_tiles, Counter& counter) const {
    if (GetParam()) {
      run<AmxTiles>(block, row_tiles, column_tiles, counter);
    } else {
      run<EmulatedTiles>(block, row_tiles, column_tiles, counter);
    }
  }
  // After a block of another shape and before one of the same.
  template <typename Engine>
  static void run(const TileBlock& block, int64_t row_tiles, int64_t column_tiles, Counter& counter) {
    std::vector<float> other(1024);
    TileBlock before = block, behind = block;
    before.sums = behind.sums = {.c = other.data(), .c_stride = 128, .c_tile = 2048};
    Counter ignored;
    TileBlocks<Engine> blocks;
    const TileScope<Engine> scope;
    blocks.multiply(before, 3 - row_tiles, column_tiles, ignored);
    blocks.multiply(block, row_tiles, column_tiles, counter);
    blocks.multiply(behind, row_tiles, column_tiles, ignored);
    blocks.finish();
  }
  std::optional<TrappedTiles> trapped_;
};

INSTANTIATE_TEST_SUITE_P(Engines, Blocks, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Instructions" : "Emulated"; });

// A [32][96 + 32] and B [48 + 16 pairs][32][2] in rows of odd strides, C [32][40]; small integers, so sums are exact.
TEST_P(Blocks, EveryShapeWithStridesAndTails) {
  constexpr int64_t kAStride = 140, kBStride = 70, kCStride = 40, kMaxSteps = 3;
  std::vector<uint16_t> a(32 * kAStride), b(64 * kBStride);
  const auto fill = [](std::vector<uint16_t>& elements, int seed) {
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = base::float_to_bf16(static_cast<float>((i * 7 + i / 11 + static_cast<size_t>(seed)) % 9) - 4.0F);
    }
  };
  fill(a, 1);
  fill(b, 2);
  // Steps past the whole ones, as tiles of their own.
  std::vector<uint16_t> a_tail(1024), b_tail(1024);
  fill(a_tail, 3);
  fill(b_tail, 4);
  const auto value = [](uint16_t bits) { return base::bf16_to_float(bits); };
  for (int64_t rows = 1; rows <= 2; ++rows) {
    for (int64_t columns = 1; columns <= 2; ++columns) {
      for (int64_t steps = 0; steps <= kMaxSteps; ++steps) {
        for (const bool has_tail : {false, true}) {
          for (const bool adds : {false, true}) {
            std::vector<float> c(32 * kCStride, 5.0F);
            Counter counter;
            multiply({.a = a.data(),
                      .a_stride = kAStride * 2,
                      .a_step = 64,
                      .a_tile = 16 * kAStride * 2,
                      .b = b.data(),
                      .b_stride = kBStride * 2,
                      .b_step = 16 * kBStride * 2,
                      .b_tile = 64,
                      .steps = steps,
                      .a_tail = has_tail ? a_tail.data() : nullptr,
                      .b_tail = has_tail ? b_tail.data() : nullptr,
                      .sums = {.c = c.data(), .c_stride = kCStride * 4, .c_tile = 16 * kCStride * 4},
                      .adds = adds},
                     rows, columns, counter);
            EXPECT_EQ(counter.steps, steps);
            EXPECT_EQ(counter.blocks, 1);
            for (int64_t r = 0; r < 32; ++r) {
              for (int64_t n = 0; n < kCStride; ++n) {
                const bool is_inside = r < 16 * rows && n < 16 * columns;
                float sum = is_inside && !adds ? 0.0F : 5.0F;
                for (int64_t k = 0; is_inside && k < 32 * steps; ++k) {
                  sum += value(a[static_cast<size_t>(r * kAStride + k)]) *
                         value(b[static_cast<size_t>(k / 2 * kBStride + 2 * n + k % 2)]);
                }
                for (int64_t k = 0; is_inside && has_tail && k < 32; ++k) {
                  sum += value(a_tail[static_cast<size_t>(r * 32 + k)]) *
                         value(b_tail[static_cast<size_t>(n / 16 * 512 + k / 2 * 32 + 2 * (n % 16) + k % 2)]);
                }
                ASSERT_EQ(c[static_cast<size_t>(r * kCStride + n)], sum)
                    << rows << " x " << columns << ", " << steps << " steps, at " << r << ", " << n;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
