// SPDX-License-Identifier: Apache-2.0
#include "shard/slice.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace expertmesh::shard {
namespace {

// CKPT-07, MESH-12: ceil chunks, the last ones short or empty.
TEST(ChunkRange, CutsAsTorchChunkDoes) {
  const auto cut = [](int64_t size, int64_t parts) {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (int64_t i = 0; i < parts; ++i) {
      const Range range = chunk_range(size, parts, i);
      result.emplace_back(range.begin, range.size());
    }
    return result;
  };
  using Parts = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(cut(509, 4), (Parts{{0, 128}, {128, 128}, {256, 128}, {384, 125}}));
  EXPECT_EQ(cut(20, 8), (Parts{{0, 3}, {3, 3}, {6, 3}, {9, 3}, {12, 3}, {15, 3}, {18, 2}, {20, 0}}));
  EXPECT_EQ(cut(6, 4), (Parts{{0, 2}, {2, 2}, {4, 2}, {6, 0}}));
  EXPECT_EQ(cut(64, 2), (Parts{{0, 32}, {32, 32}}));
  EXPECT_EQ(cut(3, 4), (Parts{{0, 1}, {1, 1}, {2, 1}, {3, 0}}));
  EXPECT_EQ(cut(0, 3), (Parts{{0, 0}, {0, 0}, {0, 0}}));
}

TEST(ChunkRange, PartsTileTheDimExactlyOnce) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 16; ++parts) {
      int64_t next = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range range = chunk_range(size, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), 0);
        next = range.end;
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(Box, NarrowsOnePlacementAfterTheOther) {
  Box box = Box::whole({8, 12, 5});
  box.narrow(0, 4, 1);  // experts [2, 4)
  box.narrow(1, 5, 3);  // of 12 rows in chunks of 3: [9, 12)
  EXPECT_EQ(box.text(), "[2:4, 9:12, 0:5]");
  EXPECT_EQ(box.shape(), (std::vector<int64_t>{2, 3, 5}));
  EXPECT_EQ(box.numel(), 30);
  box.narrow(0, 2, 1);  // narrows what is left, not the whole
  EXPECT_EQ(box.text(), "[3:4, 9:12, 0:5]");
}

TEST(Box, RefusesADimThatIsNotThere) {
  Box box = Box::whole({4});
  EXPECT_THROW(box.narrow(1, 2, 0), base::Error);
}

}  // namespace
}  // namespace expertmesh::shard
