// SPDX-License-Identifier: Apache-2.0
#include "ops/rank_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

namespace expertmesh::ops {
namespace {

constexpr int64_t kLarge = 4 * RankMemory::kSmallestBytes;

at::Tensor new_bytes(int64_t count) { return at::empty({count}, at::kByte); }

TEST(RankMemory, LargeTensorsComeFromTheArena) {
  EXPECT_EQ(rank_memory_use().peak_bytes, 0);
  const RankMemory memory;
  EXPECT_EQ(rank_memory_use().peak_bytes, 0);
  {
    const at::Tensor small = new_bytes(RankMemory::kSmallestBytes - 1);
    EXPECT_EQ(rank_memory_use().peak_bytes, 0);
    const at::Tensor large = new_bytes(kLarge);
    EXPECT_GE(rank_memory_use().peak_bytes, kLarge);
  }
  const int64_t peak = rank_memory_use().peak_bytes;
  for (int i = 0; i < 3; ++i) new_bytes(kLarge);
  EXPECT_EQ(rank_memory_use().peak_bytes, peak);
  EXPECT_EQ(rank_memory_use().extent_bytes, peak);
}

TEST(RankMemory, TheSameMemoryComesAgain) {
  const RankMemory memory;
  const void* first = new_bytes(kLarge).const_data_ptr();
  EXPECT_EQ(new_bytes(kLarge).const_data_ptr(), first);
}

TEST(RankMemory, OtherThreadsHaveTheirOwnOrNone) {
  const RankMemory memory;
  const at::Tensor mine = new_bytes(kLarge);
  std::thread([] {
    const at::Tensor plain = new_bytes(kLarge);
    EXPECT_EQ(rank_memory_use().peak_bytes, 0);
    const RankMemory own;
    const at::Tensor large = new_bytes(2 * kLarge);
    EXPECT_GE(rank_memory_use().peak_bytes, 2 * kLarge);
  }).join();
  EXPECT_LT(rank_memory_use().peak_bytes, 2 * kLarge);
}

TEST(RankMemory, TensorsOutliveItAndAreFreedAnywhere) {
  at::Tensor kept;
  {
    const RankMemory memory;
    kept = at::ones({kLarge}, at::kByte);
  }
  {
    const RankMemory next;  // an arena that nobody needs, so not that one
    const at::Tensor other = at::zeros({kLarge}, at::kByte);
    EXPECT_EQ(kept.sum().item<int64_t>(), kLarge);
  }
  std::thread([&kept] { kept.reset(); }).join();
  const RankMemory again;
  EXPECT_EQ(at::ones({kLarge}, at::kByte).sum().item<int64_t>(), kLarge);
}

// As products of bf16 take their scratch.
TEST(RankMemory, BlocksAreFreedByTheirAddress) {
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  const RankMemory memory;
  for (const size_t bytes : {size_t{64}, static_cast<size_t>(kLarge)}) {
    c10::Allocator& now = *c10::GetCPUAllocator();
    void* block = now.raw_allocate(bytes);
    ASSERT_NE(block, nullptr);
    now.raw_deallocate(block);
  }
  void* before = allocator.raw_allocate(64);
  c10::GetCPUAllocator()->raw_deallocate(before);
}

TEST(RankMemory, GrowsAndIsCopied) {
  const RankMemory memory;
  at::Tensor tensor = at::ones({kLarge}, at::kByte);
  tensor.resize_({3 * kLarge});
  EXPECT_EQ(tensor.narrow(0, 0, kLarge).sum().item<int64_t>(), kLarge);
  EXPECT_TRUE(tensor.clone().equal(tensor));
}

}  // namespace
}  // namespace expertmesh::ops
