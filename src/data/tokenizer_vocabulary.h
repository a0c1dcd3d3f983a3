// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer: id <-> spelling <-> bytes. Ids may have gaps; memory follows the number of tokens, never
// the largest id. Filled once, then constant. Threads: any, after freeze().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::data {

class Vocabulary {
 public:
  struct Entry {
    std::string spelling;  // as in the file
    std::string bytes;     // what it stands for in text
    int32_t id = 0;
    bool is_special = false;
  };

  // Tokens may come in any order. False where the spelling or (noticed by freeze) the id is there already.
  bool add(Entry entry);
  // The entry of a spelling, to be changed before freeze(): neither spelling nor id.
  Entry* edit(std::string_view spelling);
  // Sorts by id and makes the look-ups. Returns two entries with the same id, if there are any.
  struct Clash {
    std::string first, second;
    int32_t id;
  };
  std::optional<Clash> freeze();

  size_t size() const { return entries_.size(); }
  const std::vector<Entry>& entries() const { return entries_; }  // by id, after freeze()
  const Entry* find_id(int32_t id) const;
  const Entry* find_spelling(std::string_view spelling) const;

 private:
  struct Slot {          // open addressing
    uint32_t index = 0;  // + 1, into entries_; 0 = free
    uint32_t hash = 0;   // saves most comparisons of strings
  };
  static uint32_t hash_of(std::string_view spelling);
  size_t slot_of(std::string_view spelling, uint32_t hash) const;
  void grow();
  void fill_slots();

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
};

}  // namespace expertmesh::data
