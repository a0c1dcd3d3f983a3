// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/amx.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/cpu/amx_emulated.h"
#include "ops/cpu/amx_trapped.h"

namespace expertmesh::ops::cpu {
namespace {

using Half = uint16_t;

Half half(float x) { return base::float_to_bf16(x); }

// A [rows, pairs * 2] and B [pairs, columns * 2], packed as one tile each; C starts at 1.
struct Product {
  int rows = kAmxRows, pairs = kAmxRows, columns = kAmxRows;
  Half a[kAmxRows][32] = {}, b[kAmxRows][32] = {};
  float c[kAmxRows][kAmxRows] = {};

  TileConfig config() const {
    TileConfig result;
    const auto set = [&](int tile, int tile_rows, int bytes) {
      result.rows[tile] = static_cast<uint8_t>(tile_rows);
      result.row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    set(0, rows, columns * 4);
    set(3, rows, pairs * 4);
    set(5, pairs, columns * 4);
    return result;
  }

  void fill() {
    uint32_t state = 12345;
    const auto next = [&] {
      state = state * 1664525U + 1013904223U;
      return half(static_cast<float>(static_cast<int32_t>(state) >> 20) / 1024.0F);
    };
    for (auto& row : a) {
      for (Half& x : row) x = next();
    }
    for (auto& row : b) {
      for (Half& x : row) x = next();
    }
    for (auto& row : c) {
      for (float& x : row) x = 1.0F;
    }
  }

  template <typename Engine>
  void run() {
    Engine::configure(config());
    Engine::template load<0>(c, sizeof c[0]);
    Engine::template load<3>(a, sizeof a[0]);
    Engine::template load<5>(b, sizeof b[0]);
    Engine::template multiply_add<0, 3, 5>();
    Engine::template store<0>(c, sizeof c[0]);
    Engine::release();
  }
};

// The processor's instructions where it has them, else trapped.
class RunsTileInstructions : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_amx()) trapped_.emplace();
  }
  std::optional<TrappedTiles> trapped_;
};

TEST(AmxEmulated, SumsOfProducts) {
  for (const auto& [rows, pairs, columns] : {std::array{16, 16, 16}, std::array{3, 5, 7}, std::array{1, 1, 1}}) {
    Product product;
    product.fill();
    product.rows = rows, product.pairs = pairs, product.columns = columns;
    const Product before = product;
    product.run<EmulatedTiles>();
    for (int m = 0; m < kAmxRows; ++m) {
      for (int n = 0; n < kAmxRows; ++n) {
        double sum = 1.0;
        for (int k = 0; k < 2 * pairs; ++k) {
          sum += static_cast<double>(base::bf16_to_float(before.a[m][k])) *
                 static_cast<double>(base::bf16_to_float(before.b[k / 2][2 * n + k % 2]));
        }
        const bool is_inside = m < rows && n < columns;
        EXPECT_NEAR(static_cast<double>(product.c[m][n]), is_inside ? sum : 1.0, 1e-4) << m << ", " << n;
      }
    }
  }
}

// Even and odd elements are summed apart, then together, then added to what was there.
TEST(AmxEmulated, OrderOfSums) {
  Product product;
  product.rows = product.columns = 1;
  for (int k = 0; k < 32; ++k) product.b[k / 2][k % 2] = half(1.0F);
  // The odd elements' 2^24 swallows a 1 that comes after it, not the even elements' ones.
  product.a[0][1] = half(16777216.0F);
  product.a[0][3] = half(1.0F);
  product.a[0][0] = product.a[0][2] = half(1.0F);
  product.c[0][0] = -16777216.0F;
  product.run<EmulatedTiles>();
  EXPECT_EQ(product.c[0][0], 2.0F);
}

TEST(AmxEmulated, SubnormalsAreZeros) {
  Product product;
  product.rows = product.columns = product.pairs = 1;
  const auto run = [&](Half a, Half b, float c) {
    product.a[0][0] = a, product.b[0][0] = b, product.c[0][0] = c;
    product.run<EmulatedTiles>();
    return product.c[0][0];
  };
  const Half subnormal = 0x0040, least = half(FLT_MIN);
  EXPECT_EQ(run(subnormal, half(2.0F), 0.0F), 0.0F);
  EXPECT_EQ(run(least, half(0.5F), 0.0F), 0.0F);
  EXPECT_EQ(run(least, half(1.0F), 0.0F), FLT_MIN);
  EXPECT_EQ(run(half(0.0F), half(1.0F), FLT_MIN / 2), 0.0F);
  EXPECT_TRUE(std::isnan(run(half(0.0F), half(std::numeric_limits<float>::infinity()), 0.0F)));
}

TEST(AmxEmulated, WhatTheProcessorFaultsOnIsRefused) {
  TileFile tiles;
  float memory[256] = {};
  EXPECT_THROW(tiles.zero(0), base::Error);
  EXPECT_THROW(tiles.load(0, memory, 64), base::Error);
  TileConfig config = whole_tiles();
  config.rows[3] = 17;
  EXPECT_THROW(tiles.configure(config), base::Error);
  config = whole_tiles();
  config.row_bytes[3] = 0;
  EXPECT_THROW(tiles.configure(config), base::Error);
  config = whole_tiles();
  config.rows[8] = 1, config.row_bytes[8] = 4;
  EXPECT_THROW(tiles.configure(config), base::Error);

  config = whole_tiles();
  config.rows[4] = 8;
  config.row_bytes[6] = 32;
  config.rows[7] = config.row_bytes[7] = 0;
  tiles.configure(config);
  EXPECT_THROW(tiles.configure(config), base::Error);
  EXPECT_THROW(tiles.store(7, memory, 64), base::Error);
  EXPECT_THROW(tiles.multiply_add(0, 0, 1), base::Error);
  EXPECT_THROW(tiles.multiply_add(0, 4, 1), base::Error);  // rows of C and A
  EXPECT_THROW(tiles.multiply_add(0, 1, 4), base::Error);  // depth
  EXPECT_THROW(tiles.multiply_add(0, 1, 6), base::Error);  // columns
  tiles.multiply_add(0, 1, 2);
  tiles.release();
  EXPECT_THROW(tiles.multiply_add(0, 1, 2), base::Error);
}

// A tile touches its rows of memory and nothing beside them.
TEST_F(RunsTileInstructions, StridesAndEdges) {
  std::vector<float> from(5 * 40), to(5 * 40, -1.0F);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  TileConfig config;
  config.rows[6] = 5, config.row_bytes[6] = 28;
  AmxTiles::configure(config);
  AmxTiles::load<6>(from.data(), 160);
  AmxTiles::store<6>(to.data(), 160);
  AmxTiles::zero<6>();
  AmxTiles::store<6>(to.data() + 20, 160);
  AmxTiles::release();
  for (size_t row = 0; row < 5; ++row) {
    for (size_t column = 0; column < 40; ++column) {
      const size_t i = row * 40 + column;
      EXPECT_EQ(to[i], column < 7 ? from[i] : column >= 20 && column < 27 ? 0.0F : -1.0F) << row << ", " << column;
    }
  }
}

TEST_F(RunsTileInstructions, EqualTheEmulatedOnes) {
  for (const auto& [rows, pairs, columns] : {std::array{16, 16, 16}, std::array{3, 5, 7}, std::array{1, 1, 1}}) {
    Product product;
    product.fill();
    product.rows = rows, product.pairs = pairs, product.columns = columns;
    Product emulated = product;
    product.run<AmxTiles>();
    emulated.run<EmulatedTiles>();
    EXPECT_EQ(std::memcmp(product.c, emulated.c, sizeof product.c), 0);
  }
}

TEST(TileScope, ConfiguresOnceAndReleasesOnce) {
  {
    const TileScope<EmulatedTiles> outer;
    {
      const TileScope<EmulatedTiles> inner;
      EmulatedTiles::zero<7>();
    }
    EXPECT_TRUE(tile_file().is_configured());
  }
  EXPECT_FALSE(tile_file().is_configured());
}

TEST(AmxState, AsksOnlyWhereTheProcessorHasIt) {
  EXPECT_EQ(find_amx_state(true, [] { return true; }), AmxState::kUsable);
  EXPECT_EQ(find_amx_state(true, [] { return false; }), AmxState::kRefused);
  EXPECT_EQ(find_amx_state(false, []() -> bool { throw std::logic_error("asked"); }), AmxState::kAbsent);
  EXPECT_EQ(has_amx(), amx_state() == AmxState::kUsable);
  EXPECT_NE(amx_state_text(AmxState::kAbsent), amx_state_text(AmxState::kRefused));
}

}  // namespace
}  // namespace expertmesh::ops::cpu
