// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/amx_expert_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "ops/cpu/amx_emulated.h"
#include "ops/cpu/each_amx_engine.h"
#include "ops/cpu/guarded_buffer.h"

namespace expertmesh::ops::cpu {
namespace {

constexpr uint16_t kNan = 0x7fc0, kGuard = 0x4242;

double value(Bf16 x) { return static_cast<double>(base::bf16_to_float(x.bits)); }

void fill(std::span<Bf16> elements, uint64_t seed) {
  uint64_t state = seed * 2654435761U + 1;
  for (Bf16& x : elements) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    x.bits = base::float_to_bf16(static_cast<float>(static_cast<double>(state >> 40) / (1 << 23) - 1.0));
  }
}

struct Sizes {
  int64_t rows, columns, depth;
};

// A product whose three matrices each end, or begin, where memory does. Between rows of A are NaNs, between those of C
// guards.
class Case {
 public:
  Case(Sizes sizes, Edge edge, uint64_t seed = 1)
      : sizes_(sizes),
        a_stride_(sizes.depth + 3),
        c_stride_(sizes.columns + 5),
        a_(span(sizes.rows, a_stride_, sizes.depth), edge),
        b_(static_cast<size_t>(sizes.depth * sizes.columns), edge),
        packed_(static_cast<size_t>((sizes.columns + 15) / 16 * ((sizes.depth + 1) / 2) * 16), edge),
        c_(span(sizes.rows, c_stride_, sizes.columns), edge) {
    for (Bf16& x : a_.all()) x.bits = kNan;
    for (int64_t r = 0; r < sizes.rows; ++r) fill(a_row(r), seed + static_cast<uint64_t>(r));
    fill(b_.all(), seed + 1000);
    pack();
    clear();
  }

  ExpertProduct product() const {
    return {.a = {a_.data(), a_stride_, nullptr},
            .b = packed_.data(),
            .c = {c_.data(), c_stride_, nullptr},
            .rows = sizes_.rows,
            .columns = sizes_.columns,
            .depth = sizes_.depth};
  }

  void clear() const {
    for (Bf16& x : c_.all()) x.bits = kGuard;
    for (int64_t r = 0; r < sizes_.rows; ++r) {
      for (Bf16& x : c_row(r)) x.bits = kNan;
    }
  }

  void poison() const {
    for (Bf16& x : a_.all()) x.bits = kNan;
    for (uint32_t& pair : packed_.all()) pair = kNan << 16 | kNan;
  }

  const Bf16* b_rows() const { return b_.data(); }
  std::span<uint32_t> packed() const { return packed_.all(); }
  std::span<Bf16> a_row(int64_t r) const { return {a_.data() + r * a_stride_, static_cast<size_t>(sizes_.depth)}; }
  std::span<Bf16> c_row(int64_t r) const { return {c_.data() + r * c_stride_, static_cast<size_t>(sizes_.columns)}; }

  double exact(int64_t r, int64_t n) const {
    double sum = 0.0;
    for (int64_t k = 0; k < sizes_.depth; ++k) sum += value(a_row(r)[static_cast<size_t>(k)]) * value(b_at(k, n));
    return sum;
  }

  void expect_product() const {
    for (int64_t r = 0; r < sizes_.rows; ++r) {
      for (int64_t n = 0; n < sizes_.columns; ++n) {
        const double sum = exact(r, n);
        ASSERT_NEAR(value(c_row(r)[static_cast<size_t>(n)]), sum,
                    std::abs(sum) / 256 + static_cast<double>(sizes_.depth) * 1e-6)
            << sizes_.rows << " x " << sizes_.columns << " x " << sizes_.depth << " at " << r << ", " << n;
      }
      for (int64_t n = sizes_.columns; r + 1 < sizes_.rows && n < c_stride_; ++n) {
        ASSERT_EQ(c_.data()[r * c_stride_ + n].bits, kGuard) << "behind row " << r;
      }
    }
  }

  const Sizes& sizes() const { return sizes_; }

 private:
  static size_t span(int64_t rows, int64_t stride, int64_t width) {
    return rows == 0 ? 0 : static_cast<size_t>((rows - 1) * stride + width);
  }
  Bf16 b_at(int64_t k, int64_t n) const { return b_.data()[k * sizes_.columns + n]; }

  void pack() {
    const int64_t pairs = (sizes_.depth + 1) / 2;
    for (uint32_t& pair : packed_.all()) pair = 0;
    for (int64_t k = 0; k < sizes_.depth; ++k) {
      for (int64_t n = 0; n < sizes_.columns; ++n) {
        packed_.data()[(n / 16 * pairs + k / 2) * 16 + n % 16] |= static_cast<uint32_t>(b_at(k, n).bits)
                                                                  << (k % 2 * 16);
      }
    }
  }

  Sizes sizes_;
  int64_t a_stride_, c_stride_;
  GuardedBuffer<Bf16> a_, b_;
  GuardedBuffer<uint32_t> packed_;
  GuardedBuffer<Bf16> c_;
};

class AmxExpertProduct : public EachAmxEngine {
 protected:
  void multiply(const ExpertProduct& product) const {
    if (ships()) {
      kExpertKernelsAmx.multiply(product);
    } else {
      multiply_on_tiles<EmulatedTiles>(product);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, AmxExpertProduct, testing::Bool(), AmxExpertProduct::name);

TEST_P(AmxExpertProduct, EverySize) {
  for (const int64_t rows : {0, 1, 16, 17, 37}) {
    for (const int64_t columns : {0, 1, 16, 17, 37, 60, 64}) {
      for (const int64_t depth : {0, 1, 31, 32, 37, 60, 100}) {
        for (const Edge edge : {Edge::kEnd, Edge::kBegin}) {
          const Case tested({rows, columns, depth}, edge);
          multiply(tested.product());
          tested.expect_product();
          EXPECT_FALSE(tile_file().is_configured());
        }
      }
    }
  }
}

// More columns than meet a panel at a time, of any depth.
TEST_P(AmxExpertProduct, StripsAndPanels) {
  for (const Sizes& sizes :
       {Sizes{35, 2 * kAmxStripColumns + 21, 40}, Sizes{33, 150, 8192}, Sizes{47, 70, 2049}, Sizes{3, 20, 4500}}) {
    const Case tested(sizes, Edge::kEnd);
    multiply(tested.product());
    tested.expect_product();
  }
}

// Rows of A on cache lines of their own, where tiles are loaded from them, and rows that are copied; the last one ends
// where memory does. Through a list they are always copied: the same bits.
TEST_P(AmxExpertProduct, RowsThatLieAsTiles) {
  constexpr int64_t kRows = 48;
  for (const int64_t depth : {96, 100}) {
    for (const int64_t stride : {128, 160, 1024, 130}) {
      for (const int64_t columns : {20, 70}) {
        const Case tested({kRows, columns, depth}, Edge::kEnd);
        const GuardedBuffer<Bf16> a(static_cast<size_t>((kRows - 1) * stride + (depth + 31) / 32 * 32), Edge::kEnd);
        for (Bf16& x : a.all()) x.bits = kNan;
        for (int64_t r = 0; r < kRows; ++r) std::ranges::copy(tested.a_row(r), a.data() + r * stride);
        ExpertProduct product = tested.product();
        product.a = {a.data(), stride, nullptr};
        multiply(product);
        tested.expect_product();
        std::vector<int64_t> list(kRows);
        std::iota(list.begin(), list.end(), 0);
        std::vector<Bf16> listed(static_cast<size_t>(kRows * columns));
        product.a.index = list.data();
        product.c = {listed.data(), columns, nullptr};
        multiply(product);
        for (int64_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(std::memcmp(listed.data() + r * columns, tested.c_row(r).data(), tested.c_row(r).size_bytes()), 0)
              << r << " of stride " << stride;
        }
      }
    }
  }
}

// A sum does not depend on which rows and columns there are beside it, nor on lists.
TEST_P(AmxExpertProduct, PiecesGiveTheSameBits) {
  const Case whole({50, 45, 70}, Edge::kEnd), pieces({50, 45, 70}, Edge::kEnd);
  multiply(whole.product());
  std::vector<int64_t> order(50);
  for (int64_t i = 0; i < 50; ++i) order[static_cast<size_t>(i)] = (i * 7 + 3) % 50;
  for (int64_t first = 0, rows = 1; first < 50; first += rows, rows = std::min(rows * 3, 50 - first)) {
    for (const auto& [column, columns] : {std::pair<int64_t, int64_t>{0, 16}, {16, 29}}) {
      ExpertProduct piece = pieces.product();
      piece.a.index = piece.c.index = order.data() + first;
      piece.rows = rows;
      piece.b += column * 35;
      piece.c.data += column;
      piece.columns = columns;
      multiply(piece);
    }
  }
  for (int64_t r = 0; r < 50; ++r) {
    EXPECT_EQ(std::memcmp(whole.c_row(r).data(), pieces.c_row(r).data(), whole.c_row(r).size_bytes()), 0) << r;
  }
}

TEST_P(AmxExpertProduct, NansStayInTheirRow) {
  const Case tested({64, 64, 100}, Edge::kEnd);
  for (const int64_t row : {3, 40}) tested.a_row(row)[99].bits = kNan;
  multiply(tested.product());
  for (int64_t r = 0; r < 64; ++r) {
    for (const Bf16 x : tested.c_row(r)) ASSERT_EQ(std::isnan(value(x)), r == 3 || r == 40) << r;
  }
}

TEST_P(AmxExpertProduct, NothingIsLeftForTheNextProduct) {
  const Case large({64, 64, 62}, Edge::kEnd), small({5, 7, 9}, Edge::kEnd);
  large.poison();
  multiply(large.product());
  multiply(small.product());
  small.expect_product();
}

// Written around the caches, where a cache line is whole; what is fetched may lie past the end of memory.
TEST_P(AmxExpertProduct, FarAndReadLate) {
  constexpr int64_t kRows = 40, kColumns = 70, kStride = 96;
  const Case tested({kRows, kColumns, 64}, Edge::kEnd);
  multiply(tested.product());
  alignas(64) Bf16 c[kRows * kStride];
  for (Bf16& x : c) x.bits = kGuard;
  ExpertProduct product = tested.product();
  product.c = {c, kStride, nullptr};
  product.is_a_far = product.is_read_late = true;
  multiply(product);
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(std::memcmp(c + r * kStride, tested.c_row(r).data(), tested.c_row(r).size_bytes()), 0) << r;
    for (int64_t n = kColumns; n < kStride; ++n) EXPECT_EQ(c[r * kStride + n].bits, kGuard);
  }
}

// The next operand is packed beside every product, also one that has nothing to do.
TEST_P(AmxExpertProduct, PacksTheNextOperand) {
  for (const Sizes& sizes : {Sizes{40, 70, 64}, Sizes{5, 7, 9}, Sizes{0, 0, 0}}) {
    for (const int64_t columns : {1, 16, 17, 32, 37, 64}) {
      for (const int64_t depth : {0, 1, 2, 37, 300}) {
        const Case tested(sizes, Edge::kEnd), next({1, columns, depth}, Edge::kEnd);
        const GuardedBuffer<uint32_t> packed(next.packed().size(), Edge::kEnd);
        for (uint32_t& pair : packed.all()) pair = kNan << 16 | kNan;
        ExpertProduct product = tested.product();
        product.pack = {
            .rows = next.b_rows(), .stride = columns, .columns = columns, .depth = depth, .out = packed.data()};
        multiply(product);
        tested.expect_product();
        EXPECT_TRUE(std::ranges::equal(packed.all(), next.packed())) << columns << " x " << depth;
      }
    }
  }
}

}  // namespace
}  // namespace expertmesh::ops::cpu
