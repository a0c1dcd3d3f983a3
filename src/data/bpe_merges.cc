// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_merges.h"

#include <bit>
#include <utility>

namespace expertmesh::data {

BpeMerges::BpeMerges(std::vector<BpeMerge> merges) : merges_(std::move(merges)) {
  const size_t count = std::bit_ceil(merges_.size() * 2 + 2);
  slots_.resize(count);
  mask_ = count - 1;
  shift_ = 64 - std::countr_zero(count);
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const uint64_t key = pair_key(merges_[rank].left, merges_[rank].right);
    size_t slot = hash(key);
    while (slots_[slot].rank != kNone) slot = (slot + 1) & mask_;
    slots_[slot] = Slot{key, static_cast<uint32_t>(rank)};
  }
}

}  // namespace expertmesh::data
