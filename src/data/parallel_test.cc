// SPDX-License-Identifier: Apache-2.0
#include "data/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace expertmesh::data {
namespace {

TEST(ParallelPieces, EachOnce) {
  for (const int threads : {0, 1, 2, 3, 16}) {
    for (const size_t count : {0U, 1U, 2U, 1000U}) {
      std::vector<std::atomic<int>> calls(count);
      parallel_pieces(count, threads, [&](size_t i) { ++calls[i]; });
      for (const auto& called : calls) EXPECT_EQ(called, 1);
    }
  }
}

TEST(ParallelPieces, TheFirstErrorInOrderIsThrown) {
  for (int round = 0; round < 50; ++round) {
    try {
      parallel_pieces(100, 4, [](size_t i) {
        if (i == 37 || i == 90 || i == 38) throw std::runtime_error(std::to_string(i));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "37");
    }
  }
}

}  // namespace
}  // namespace expertmesh::data
