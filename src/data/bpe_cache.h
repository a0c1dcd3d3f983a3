// SPDX-License-Identifier: Apache-2.0
// Remembers the ids of short words. Bounded: a newer word takes the place of an older one. Threads: one per object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace expertmesh::data {

class BpeCache {
 public:
  static constexpr size_t kMaxBytes = 31;
  static constexpr size_t kMaxIds = 7;

  struct alignas(64) Entry {  // one cache line
    uint64_t key[4] = {};     // the bytes, zeros, and the length in the last byte
    uint32_t count = 0;
    int32_t ids[kMaxIds] = {};
  };

  BpeCache() : entries_(kEntries) {}

  // The place of a word of 1 to kMaxBytes bytes. The next find() may give it to another word.
  class Place {
   public:
    Place(Entry& entry, const uint64_t (&key)[4]) : entry_(&entry) { std::memcpy(key_, key, sizeof key_); }
    bool is_hit() const { return std::memcmp(entry_->key, key_, sizeof key_) == 0; }
    std::span<const int32_t> ids() const { return {entry_->ids, entry_->count}; }
    void store(std::span<const int32_t> ids) {
      if (ids.size() > kMaxIds) return;
      std::memcpy(entry_->key, key_, sizeof key_);
      entry_->count = static_cast<uint32_t>(ids.size());
      std::copy(ids.begin(), ids.end(), entry_->ids);
    }

   private:
    Entry* entry_;
    uint64_t key_[4];
  };

  Place find(std::string_view word) {
    unsigned char bytes[kMaxBytes + 1] = {};
    std::memcpy(bytes, word.data(), word.size());
    bytes[kMaxBytes] = static_cast<unsigned char>(word.size());
    uint64_t key[4];
    std::memcpy(key, bytes, sizeof key);
    uint64_t hash = 0;
    for (const uint64_t part : key) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
    return Place(entries_[(hash * 0xd6e8feb86659fd93U) >> (64 - kEntryBits)], key);
  }

 private:
  static constexpr int kEntryBits = 15;
  static constexpr size_t kEntries = size_t{1} << kEntryBits;  // 2 MiB
  std::vector<Entry> entries_;
};

}  // namespace expertmesh::data
