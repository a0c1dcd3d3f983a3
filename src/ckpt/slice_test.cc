// SPDX-License-Identifier: Apache-2.0
#include "ckpt/slice.h"

#include <gtest/gtest.h>

#include <random>

namespace expertmesh::ckpt {
namespace {

TEST(Numel, ChecksItsProduct) {
  EXPECT_EQ(try_numel({}), 1);
  EXPECT_EQ(try_numel({2, 3}), 6);
  EXPECT_EQ(try_numel({int64_t{1} << 40, 0, int64_t{1} << 40}), 0);
  EXPECT_FALSE(try_numel({int64_t{1} << 32, int64_t{1} << 32}));
  EXPECT_FALSE(try_numel({2, -1}));
  EXPECT_FALSE(try_numel({0, -1}));
}

TEST(Slice, FitsAndText) {
  const Slice slice{{0, 2}, {4, 2}};
  EXPECT_EQ(slice.text(), "[0:4, 2:2]");
  EXPECT_EQ(slice.numel(), 0);
  EXPECT_TRUE(slice.fits({4, 2}));
  EXPECT_FALSE(slice.fits({3, 2}));
  EXPECT_FALSE(slice.fits({4}));
  EXPECT_FALSE((Slice{{-1}, {1}}).fits({4}));
  EXPECT_FALSE((Slice{{2}, {1}}).fits({4}));
}

TEST(Intersect, CommonPart) {
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{2, 1}, {6, 3}}), (Slice{{2, 1}, {4, 3}}));
  EXPECT_FALSE(intersect({{0}, {4}}, {{4}, {6}}));
  EXPECT_FALSE(intersect({{0}, {4}}, {{2}, {2}}));
  EXPECT_EQ(intersect({{}, {}}, {{}, {}}), (Slice{{}, {}}));
}

int64_t flat(const Slice& box, const Shape& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset = offset * (box.end[d] - box.begin[d]) + at[d] - box.begin[d];
  return offset;
}

// All (source, target) pairs of one part, found one element at a time.
std::vector<std::pair<int64_t, int64_t>> slow_pairs(const Slice& part, const Slice& source, const Slice& target) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  Shape at = part.begin;
  while (true) {
    pairs.emplace_back(flat(source, at), flat(target, at));
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == part.end[d - 1]) {
      at[d - 1] = part.begin[d - 1];
      --d;
    }
    if (d == 0) return pairs;
  }
}

TEST(ForEachBlock, EqualsTheSlowWalk) {
  std::mt19937 random(1);
  const auto up_to = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n + 1)); };
  for (int trial = 0; trial < 3000; ++trial) {
    Slice source, target;
    for (int64_t d = up_to(4); d > 0; --d) {
      for (Slice* box : {&source, &target}) {
        box->begin.push_back(up_to(2));
        box->end.push_back(box->begin.back() + 1 + up_to(3));
      }
      if (up_to(1) == 0) {
        source.begin.back() = target.begin.back();
        source.end.back() = target.end.back();
      }
    }
    const auto part = intersect(source, target);
    if (!part) continue;
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for_each_block(*part, source, target, [&](const RunBlock& block) {
      for (int64_t row = 0; row < block.rows; ++row) {
        for (int64_t i = 0; i < block.run; ++i) {
          pairs.emplace_back(block.source + row * block.source_stride + i,
                             block.target + row * block.target_stride + i);
        }
      }
    });
    ASSERT_EQ(pairs, slow_pairs(*part, source, target)) << source.text() << " and " << target.text();
  }
}

TEST(ForEachBlock, WholeTensorsAreOneRun) {
  int blocks = 0;
  const Slice whole = Slice::whole({3, 4, 5});
  for_each_block(whole, whole, whole, [&](const RunBlock& block) {
    ++blocks;
    EXPECT_EQ(block.run, 60);
    EXPECT_EQ(block.rows, 1);
  });
  EXPECT_EQ(blocks, 1);
}

}  // namespace
}  // namespace expertmesh::ckpt
