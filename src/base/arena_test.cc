// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace expertmesh::base {
namespace {

constexpr size_t kMib = size_t{1} << 20;

TEST(Arena, BlocksAreApartAndWritable) {
  Arena arena(16 * kMib);
  std::vector<std::byte*> blocks;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, kMib}) {
    auto* block = static_cast<std::byte*>(arena.try_allocate(bytes));
    ASSERT_NE(block, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0U);
    EXPECT_TRUE(arena.owns(block));
    std::memset(block, static_cast<int>(blocks.size()), bytes);
    blocks.push_back(block);
  }
  EXPECT_EQ(blocks[4][0], std::byte{4});
  EXPECT_EQ(blocks[3][4096], std::byte{3});
  const int elsewhere = 0;
  EXPECT_FALSE(arena.owns(&elsewhere));
  for (std::byte* block : blocks) arena.free(block);
  EXPECT_EQ(arena.used_bytes(), 0U);
}

TEST(Arena, WhatIsFreedIsUsedAgain) {
  Arena arena(64 * kMib);
  void* first = arena.try_allocate(10 * kMib);
  void* second = arena.try_allocate(kMib);
  const size_t extent = arena.extent_bytes();
  arena.free(first);
  EXPECT_EQ(arena.try_allocate(10 * kMib), first);
  arena.free(first);
  void* half = arena.try_allocate(5 * kMib);
  EXPECT_EQ(half, first) << "not from beyond what was used";
  arena.free(half);
  arena.free(second);
  EXPECT_EQ(arena.extent_bytes(), extent);
}

TEST(Arena, TakesTheSmallestThatFits) {
  Arena arena(64 * kMib);
  void* large = arena.try_allocate(8 * kMib);
  void* fence = arena.try_allocate(kMib);
  void* small = arena.try_allocate(2 * kMib);
  void* last = arena.try_allocate(kMib);
  arena.free(large);
  arena.free(small);
  EXPECT_EQ(arena.try_allocate(2 * kMib), small);
  EXPECT_EQ(arena.try_allocate(3 * kMib), large);
  arena.free(fence);
  arena.free(last);
}

TEST(Arena, NeighboursAreJoinedInAnyOrder) {
  const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    Arena arena(8 * kMib);
    void* blocks[3];
    for (void*& block : blocks) block = arena.try_allocate(2 * kMib);
    for (const size_t i : order) arena.free(blocks[i]);
    void* all = arena.try_allocate(7 * kMib);
    EXPECT_EQ(all, blocks[0]);
    arena.free(all);
  }
}

TEST(Arena, IsBounded) {
  Arena arena(4 * kMib);
  EXPECT_EQ(arena.try_allocate(4 * kMib + 1), nullptr);
  EXPECT_EQ(arena.try_allocate(SIZE_MAX), nullptr);
  void* most = arena.try_allocate(3 * kMib);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena.try_allocate(2 * kMib), nullptr);
  arena.free(most);
  EXPECT_NE(arena.try_allocate(2 * kMib), nullptr);
}

TEST(Arena, WithoutAddressesNothingFits) {
  Arena arena(SIZE_MAX / 2);
  EXPECT_EQ(arena.try_allocate(1), nullptr);
  EXPECT_FALSE(arena.owns(nullptr));
}

TEST(Arena, PagesGoBack) {
  Arena arena(8 * kMib);
  auto* block = static_cast<std::byte*>(arena.try_allocate(kMib));
  block[0] = std::byte{7};
  arena.free(block);
  arena.give_back_pages();
  EXPECT_EQ(arena.extent_bytes(), 0U);
  EXPECT_EQ(arena.try_allocate(kMib), block);
  EXPECT_EQ(block[0], std::byte{0});
}

// Blocks of changing sizes, each filled with its number: none overwrites another, and all of it joins again.
TEST(Arena, ChangingSizesFromSeveralThreads) {
  Arena arena(256 * kMib);
  const auto run = [&arena](uint8_t mark) {
    std::vector<std::pair<std::byte*, size_t>> held;
    uint64_t state = mark;
    for (int i = 0; i < 2000; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const size_t bytes = 1 + (state >> 40) % (200 << 10);
      auto* block = static_cast<std::byte*>(arena.try_allocate(bytes));
      ASSERT_NE(block, nullptr);
      block[0] = block[bytes - 1] = std::byte{mark};
      held.emplace_back(block, bytes);
      if (held.size() < 20) continue;
      const size_t at = (state >> 20) % held.size();
      ASSERT_EQ(held[at].first[0], std::byte{mark});
      ASSERT_EQ(held[at].first[held[at].second - 1], std::byte{mark});
      arena.free(held[at].first);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (const auto& [block, bytes] : held) arena.free(block);
  };
  std::vector<std::thread> threads;
  for (uint8_t mark = 1; mark <= 3; ++mark) threads.emplace_back(run, mark);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.used_bytes(), 0U);
  EXPECT_LE(arena.peak_bytes(), arena.extent_bytes());
  EXPECT_NE(arena.try_allocate(255 * kMib), nullptr);
}

}  // namespace
}  // namespace expertmesh::base
