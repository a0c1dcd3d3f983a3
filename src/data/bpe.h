// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE of words that the pre-tokenizer made: bytes to ids.
// Threads: Bpe any; each thread has its own BpeWorkspace.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/bpe_cache.h"
#include "data/bpe_merges.h"
#include "data/bpe_word.h"
#include "data/tokenizer_vocabulary.h"

namespace expertmesh::data {

// What a thread keeps between words.
struct BpeWorkspace {
  explicit BpeWorkspace(const BpeMerges& merges) : long_words(merges) {}
  BpeCache cache;
  LongWordMerger long_words;
  std::vector<int32_t> ids;
};

class Bpe {
 public:
  // byte_ids: the id of every single byte. whole_words: the tokens that are taken as they are where they make up a
  // whole word ("ignore_merges"), by their bytes; empty otherwise.
  Bpe(BpeMerges merges, std::array<int32_t, 256> byte_ids, Vocabulary whole_words = {});

  const BpeMerges& merges() const { return merges_; }

  // Appends the ids of one word, which is not empty.
  void encode_word(std::string_view word, BpeWorkspace& workspace, std::vector<int32_t>& out) const;

 private:
  void encode_uncached(std::string_view word, BpeWorkspace& workspace, std::vector<int32_t>& out) const;

  BpeMerges merges_;
  std::array<int32_t, 256> byte_ids_;
  Vocabulary whole_words_;  // spelled by their bytes
};

}  // namespace expertmesh::data
