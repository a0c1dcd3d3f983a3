// SPDX-License-Identifier: Apache-2.0
// Rows as fp32, zeros up to the next multiple of 32. Those of bf16 are split: of each 32 elements those with an even
// index come first, then the others. Two neighbours then widen with a shift and a mask, without moving between lanes;
// sums of products do not mind the order, and columns of a result are put back when it is stored. No torch.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kSplit = 2 * kLanes;

EXPERTMESH_INLINE void widen_row(const float* from, int64_t size, float* to) {
  if (size == 0) return;
  std::memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
  const int64_t rest = size % kSplit;
  if (rest != 0) std::memset(to + size, 0, static_cast<size_t>(kSplit - rest) * sizeof(float));
}

EXPERTMESH_INLINE void widen_row(const Bf16* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; i += kSplit) {
    UintVec pairs{};
    if (i + kSplit <= size) {
      std::memcpy(&pairs, from + i, sizeof pairs);
    } else {
      std::memcpy(&pairs, from + i, static_cast<size_t>(size - i) * sizeof(Bf16));
    }
    store(to + i, reinterpret_cast<Vec>(pairs << 16));
    store(to + i + kLanes, reinterpret_cast<Vec>(pairs & 0xffff0000U));
  }
}

// The other way round.
EXPERTMESH_INLINE void narrow_row(const float* from, int64_t size, float* to) {
  if (size == 0) return;
  std::memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
}

EXPERTMESH_INLINE void narrow_row(const float* from, int64_t size, Bf16* to) {
  for (int64_t i = 0; i < size; i += kSplit) {
    Bf16 even[kLanes], odd[kLanes], both[kSplit];
    store(even, load(from + i));
    store(odd, load(from + i + kLanes));
    for (int64_t j = 0; j < kLanes; ++j) {
      both[2 * j] = even[j];
      both[2 * j + 1] = odd[j];
    }
    const int64_t count = size - i < kSplit ? size - i : kSplit;
    std::memcpy(to + i, both, static_cast<size_t>(count) * sizeof(Bf16));
  }
}

}  // namespace expertmesh::ops::cpu
