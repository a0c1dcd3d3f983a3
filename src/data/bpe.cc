// SPDX-License-Identifier: Apache-2.0
#include "data/bpe.h"

#include <utility>

namespace expertmesh::data {

Bpe::Bpe(BpeMerges merges, std::array<int32_t, 256> byte_ids, Vocabulary whole_words)
    : merges_(std::move(merges)), byte_ids_(byte_ids), whole_words_(std::move(whole_words)) {}

void Bpe::encode_word(std::string_view word, BpeWorkspace& workspace, std::vector<int32_t>& out) const {
  if (word.size() == 1) {
    out.push_back(byte_ids_[static_cast<unsigned char>(word[0])]);
    return;
  }
  if (word.size() > BpeCache::kMaxBytes) {
    encode_uncached(word, workspace, out);
    return;
  }
  BpeCache::Place place = workspace.cache.find(word);
  if (place.is_hit()) {
    const auto ids = place.ids();
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  const size_t before = out.size();
  encode_uncached(word, workspace, out);
  place.store(std::span(out).subspan(before));
}

void Bpe::encode_uncached(std::string_view word, BpeWorkspace& workspace, std::vector<int32_t>& out) const {
  if (const Vocabulary::Entry* whole = whole_words_.find_spelling(word)) {
    out.push_back(whole->id);
    return;
  }
  if (word.size() <= kMaxScannedWord) {
    int32_t ids[kMaxScannedWord];
    for (size_t i = 0; i < word.size(); ++i) ids[i] = byte_ids_[static_cast<unsigned char>(word[i])];
    const size_t count = merge_short_word(merges_, ids, word.size());
    out.insert(out.end(), ids, ids + count);
    return;
  }
  auto& ids = workspace.ids;
  ids.resize(word.size());
  for (size_t i = 0; i < word.size(); ++i) ids[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  workspace.long_words.merge(ids, out);
  if (ids.capacity() > (size_t{1} << 20)) ids = {};
}

}  // namespace expertmesh::data
