// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_vocabulary.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace expertmesh::data {
namespace {

constexpr size_t kFirstSlots = 1024;  // a power of two

}  // namespace

uint32_t Vocabulary::hash_of(std::string_view spelling) {
  return static_cast<uint32_t>(std::hash<std::string_view>{}(spelling));
}

size_t Vocabulary::slot_of(std::string_view spelling, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].index != 0 && (slots_[at].hash != hash || entries_[slots_[at].index - 1].spelling != spelling)) {
    at = (at + 1) & mask;
  }
  return at;
}

void Vocabulary::grow() {
  slots_.resize(std::max(kFirstSlots, slots_.size() * 2));
  fill_slots();
}

void Vocabulary::fill_slots() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const uint32_t hash = hash_of(entries_[i].spelling);
    slots_[slot_of(entries_[i].spelling, hash)] = Slot{static_cast<uint32_t>(i + 1), hash};
  }
}

bool Vocabulary::add(Entry entry) {
  if (entries_.size() * 2 >= slots_.size()) grow();
  const uint32_t hash = hash_of(entry.spelling);
  Slot& slot = slots_[slot_of(entry.spelling, hash)];
  if (slot.index != 0) return false;
  entries_.push_back(std::move(entry));
  slot = Slot{static_cast<uint32_t>(entries_.size()), hash};
  return true;
}

Vocabulary::Entry* Vocabulary::edit(std::string_view spelling) {
  if (slots_.empty()) return nullptr;
  const uint32_t found = slots_[slot_of(spelling, hash_of(spelling))].index;
  return found == 0 ? nullptr : &entries_[found - 1];
}

std::optional<Vocabulary::Clash> Vocabulary::freeze() {
  const auto by_id = [](const Entry& a, const Entry& b) { return a.id < b.id; };
  if (!std::is_sorted(entries_.begin(), entries_.end(), by_id)) {
    std::stable_sort(entries_.begin(), entries_.end(), by_id);
    fill_slots();
  }
  for (size_t i = 1; i < entries_.size(); ++i) {
    if (entries_[i - 1].id == entries_[i].id) {
      return Clash{entries_[i - 1].spelling, entries_[i].spelling, entries_[i].id};
    }
  }
  return std::nullopt;
}

const Vocabulary::Entry* Vocabulary::find_id(int32_t id) const {
  const auto guess = static_cast<size_t>(id);
  if (id < 0 || entries_.empty()) return nullptr;
  if (guess < entries_.size() && entries_[guess].id == id) return &entries_[guess];  // no gap before it
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), id,
                                      [](const Entry& entry, int32_t value) { return entry.id < value; });
  return found != entries_.end() && found->id == id ? &*found : nullptr;
}

const Vocabulary::Entry* Vocabulary::find_spelling(std::string_view spelling) const {
  if (slots_.empty()) return nullptr;
  const uint32_t found = slots_[slot_of(spelling, hash_of(spelling))].index;
  return found == 0 ? nullptr : &entries_[found - 1];
}

}  // namespace expertmesh::data
