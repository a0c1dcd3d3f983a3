// SPDX-License-Identifier: Apache-2.0
// The merges of a byte-pair encoding: which pair of ids becomes which id, and how early (a lower rank goes first).
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace expertmesh::data {

struct BpeMerge {
  int32_t left = 0, right = 0, result = 0;
};

class BpeMerges {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  BpeMerges() : BpeMerges(std::vector<BpeMerge>{}) {}
  // In the order of their ranks, 0 up; all pairs differ.
  explicit BpeMerges(std::vector<BpeMerge> merges);

  size_t size() const { return merges_.size(); }
  const BpeMerge& merge(uint32_t rank) const { return merges_[rank]; }

  // The rank of a pair; kNone where it does not merge.
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t key = pair_key(left, right);
    for (size_t slot = hash(key); slots_[slot].rank != kNone; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].rank;
    }
    return kNone;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t rank = kNone;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
  }
  size_t hash(uint64_t key) const {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15U;
    return (key >> shift_) & mask_;
  }

  std::vector<BpeMerge> merges_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace expertmesh::data
