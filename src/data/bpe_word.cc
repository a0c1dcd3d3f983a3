// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_word.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace expertmesh::data {

size_t merge_short_word(const BpeMerges& merges, int32_t* ids, size_t count) {
  EXPERTMESH_CHECK(count <= kMaxScannedWord, "{} ids", count);
  if (count < 2) return count;
  uint32_t ranks[kMaxScannedWord];  // ranks[i] of the pair (i, i + 1)
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = merges.rank(ids[i], ids[i + 1]);
  while (count > 1) {
    const size_t pairs = count - 1;
    uint32_t best = ranks[0];
    for (size_t i = 1; i < pairs; ++i) best = std::min(best, ranks[i]);
    if (best == BpeMerges::kNone) break;
    const auto at = static_cast<size_t>(std::find(ranks, ranks + pairs, best) - ranks);
    ids[at] = merges.merge(best).result;
    std::copy(ids + at + 2, ids + count, ids + at + 1);
    std::copy(ranks + at + 1, ranks + pairs, ranks + at);
    --count;
    if (at > 0) ranks[at - 1] = merges.rank(ids[at - 1], ids[at]);
    if (at + 1 < count) ranks[at] = merges.rank(ids[at], ids[at + 1]);
  }
  return count;
}

void LongWordMerger::merge(std::span<const int32_t> ids, std::vector<int32_t>& out) {
  EXPERTMESH_CHECK(ids.size() < INT32_MAX, "{} ids in one word", ids.size());
  start(ids);
  for (uint32_t rank = next_rank(0); rank != BpeMerges::kNone; rank = next_rank(rank)) {
    take_bucket(rank);
    work_off(rank);
  }
  for (uint32_t at = symbols_.empty() ? kEnd : 0; at != kEnd; at = symbols_[at].next) out.push_back(symbols_[at].id);
  release_memory();
}

void LongWordMerger::start(std::span<const int32_t> ids) {
  heads_.resize(merges_->size(), kEnd);
  filled_.resize((merges_->size() + 63) / 64, 0);
  symbols_.resize(ids.size());
  candidates_.clear();
  bucket_.clear();
  free_ = kEnd;
  const auto count = static_cast<uint32_t>(ids.size());
  for (uint32_t i = 0; i < count; ++i)
    symbols_[i] = Symbol{ids[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
  // From the right: a list is filled at its head, so its positions come out in ascending order.
  for (uint32_t i = count; i-- > 0;) add_pair(i, 0);
}

// Notes that the symbol and its right neighbour could merge.
void LongWordMerger::add_pair(uint32_t at, uint32_t current_rank) {
  const uint32_t right = symbols_[at].next;
  if (right == kEnd) return;
  const uint32_t rank = merges_->rank(symbols_[at].id, symbols_[right].id);
  if (rank == BpeMerges::kNone) return;
  if (rank < current_rank || (rank == current_rank && !bucket_.empty())) {
    early_.push_back(Early{rank, at});
    std::push_heap(early_.begin(), early_.end(), std::greater<>());
    return;
  }
  uint32_t made = free_;
  if (made != kEnd) {
    free_ = candidates_[made].next;
  } else {
    made = static_cast<uint32_t>(candidates_.size());
    candidates_.emplace_back();
  }
  candidates_[made] = Candidate{at, heads_[rank]};
  heads_[rank] = made;
  filled_[rank / 64] |= uint64_t{1} << (rank % 64);
}

// Moves the candidates of a rank into bucket_, sorted.
void LongWordMerger::take_bucket(uint32_t rank) {
  bucket_.clear();
  uint32_t last = kEnd;
  for (uint32_t i = heads_[rank]; i != kEnd; i = candidates_[i].next) {
    bucket_.push_back(candidates_[i].at);
    last = i;
  }
  candidates_[last].next = free_;
  free_ = heads_[rank];
  heads_[rank] = kEnd;
  filled_[rank / 64] &= ~(uint64_t{1} << (rank % 64));
  if (!std::is_sorted(bucket_.begin(), bucket_.end())) {
    std::reverse(bucket_.begin(), bucket_.end());  // what one bucket adds to another stands in descending order
    if (!std::is_sorted(bucket_.begin(), bucket_.end())) std::sort(bucket_.begin(), bucket_.end());
  }
}

void LongWordMerger::work_off(uint32_t rank) {
  for (const uint32_t at : bucket_) {
    while (!early_.empty() && Early{rank, at} > early_.front()) {
      std::pop_heap(early_.begin(), early_.end(), std::greater<>());
      const Early first = early_.back();
      early_.pop_back();
      merge_at(first.at, first.rank, rank);
    }
    merge_at(at, rank, rank);
  }
  while (!early_.empty()) {
    std::pop_heap(early_.begin(), early_.end(), std::greater<>());
    const Early first = early_.back();
    early_.pop_back();
    merge_at(first.at, first.rank, rank);
  }
}

// Merges the pair unless one of the two has changed since it was noted.
void LongWordMerger::merge_at(uint32_t at, uint32_t rank, uint32_t current_rank) {
  const BpeMerge& merge = merges_->merge(rank);
  Symbol& left = symbols_[at];
  if (left.id != merge.left || left.next == kEnd || symbols_[left.next].id != merge.right) return;
  Symbol& right = symbols_[left.next];
  left.id = merge.result;
  left.next = right.next;
  right.id = -1;
  if (left.next != kEnd) symbols_[left.next].previous = at;
  if (left.previous != kEnd) add_pair(left.previous, current_rank);
  add_pair(at, current_rank);
}

// The lowest rank from `from` up that has candidates.
uint32_t LongWordMerger::next_rank(uint32_t from) const {
  for (size_t word = from / 64; word < filled_.size(); ++word) {
    if (filled_[word] != 0)
      return static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(filled_[word])));
  }
  return BpeMerges::kNone;
}

// One endless word must not keep its memory for the rest of the run.
void LongWordMerger::release_memory() {
  constexpr size_t kKeep = size_t{1} << 20;
  if (symbols_.capacity() > kKeep) symbols_ = {};
  if (candidates_.capacity() > kKeep) candidates_ = {};
  if (bucket_.capacity() > kKeep) bucket_ = {};
}

}  // namespace expertmesh::data
