// SPDX-License-Identifier: Apache-2.0
// Large tensors of a rank come from an arena of its own (base/arena.h): what a step frees, the next one uses again, on
// pages that are there. Small ones, and those of other threads, come from where the library gets them.
// Owns: the arena, which goes when this and the last of its tensors are gone. Threads: one, the rank's; tensors may be
// freed on any.
#pragma once

#include <cstdint>

namespace expertmesh::ops {

class RankMemory {
 public:
  static constexpr int64_t kSmallestBytes = 64 << 10;

  // Of the calling thread's tensors from here on. One at a time in a thread.
  RankMemory();
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;
};

// Of the calling thread's arena, zeros without one: most bytes in use at a time, and the part of its range that was
// touched, which is what the arena holds of the memory.
struct RankMemoryUse {
  int64_t peak_bytes = 0;
  int64_t extent_bytes = 0;
};
RankMemoryUse rank_memory_use();

}  // namespace expertmesh::ops
