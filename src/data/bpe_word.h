// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one word: the pair with the lowest rank merges first, the leftmost one among equals, until no
// pair merges. Two ways with the same result: a scan for short words, buckets by rank for long ones (linear in the
// length of the word but for the sorting inside a bucket, so that a word of megabytes takes seconds, not days).
// Threads: one per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/bpe_merges.h"

namespace expertmesh::data {

// Words up to this many ids are scanned; measured with bench/tokenizer_bench.
constexpr size_t kMaxScannedWord = 192;

// Merges ids[0, count) in place, count <= kMaxScannedWord, and returns how many are left.
size_t merge_short_word(const BpeMerges& merges, int32_t* ids, size_t count);

class LongWordMerger {
 public:
  explicit LongWordMerger(const BpeMerges& merges) : merges_(&merges) {}

  // Merges a word of any length below 2^31 ids and appends the result.
  void merge(std::span<const int32_t> ids, std::vector<int32_t>& out);

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    uint32_t previous, next;
  };
  struct Candidate {  // a pair that could merge, in the list of its rank
    uint32_t at;      // its left symbol
    uint32_t next;
  };
  // A pair met out of turn: its rank is not above the one being worked on.
  struct Early {
    uint32_t rank, at;
    bool operator>(const Early& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };

  void start(std::span<const int32_t> ids);
  void add_pair(uint32_t at, uint32_t current_rank);
  void take_bucket(uint32_t rank);
  void work_off(uint32_t rank);
  void merge_at(uint32_t at, uint32_t rank, uint32_t current_rank);
  uint32_t next_rank(uint32_t from) const;
  void release_memory();

  const BpeMerges* merges_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
  uint32_t free_ = kEnd;          // list of unused candidates
  std::vector<uint32_t> heads_;   // by rank: first candidate; kEnd between words
  std::vector<uint64_t> filled_;  // by rank, one bit: has candidates
  std::vector<uint32_t> bucket_;  // positions of the rank being worked on, ascending
  std::vector<Early> early_;      // a heap, lowest first
};

}  // namespace expertmesh::data
