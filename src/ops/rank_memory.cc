// SPDX-License-Identifier: Apache-2.0
#include "ops/rank_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/arena.h"
#include "base/check.h"

namespace expertmesh::ops {
namespace {

// An arena with the count of those that need it: the rank, and each of its tensors. An arena stays for the process, so
// that a block finds it by its address without a lock; the next rank takes one that nobody needs.
struct Slot {
  std::unique_ptr<base::Arena> arena;  // before the slot is counted in g_num_slots; then it stays
  std::atomic<int64_t> users{0};
};

constexpr size_t kMostArenas = 256;
std::array<Slot, kMostArenas> g_slots;
std::atomic<size_t> g_num_slots{0};
std::mutex g_slots_mutex;  // held to take a slot, and to give one back
thread_local Slot* t_slot = nullptr;

size_t physical_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

Slot* try_take_slot() {
  const std::lock_guard lock(g_slots_mutex);
  const size_t count = g_num_slots.load();
  for (size_t i = 0; i < kMostArenas; ++i) {
    Slot& slot = g_slots[i];
    if (slot.users.load() > 0) continue;
    if (i == count) {
      slot.arena = std::make_unique<base::Arena>(physical_bytes());
      g_num_slots.store(count + 1, std::memory_order_release);
    }
    slot.users.store(1);
    return &slot;
  }
  return nullptr;
}

void leave(Slot& slot) {
  if (slot.users.fetch_sub(1) > 1) return;
  const std::lock_guard lock(g_slots_mutex);
  if (slot.users.load() == 0) slot.arena->give_back_pages();
}

c10::Allocator* g_rest = nullptr;  // where everything else comes from

// Of an arena or of the rest: the library frees some blocks by their address alone.
void free_block(void* block) {
  const size_t count = g_num_slots.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    Slot& slot = g_slots[i];
    if (!slot.arena->owns(block)) continue;
    slot.arena->free(block);
    return leave(slot);
  }
  if (block != nullptr) g_rest->raw_deleter()(block);
}

class RankAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Slot* slot = t_slot;
    if (slot == nullptr || bytes < static_cast<size_t>(RankMemory::kSmallestBytes)) return g_rest->allocate(bytes);
    void* block = slot->arena->try_allocate(bytes);
    if (block == nullptr) return g_rest->allocate(bytes);
    slot->users.fetch_add(1);
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
};

void use_rank_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    static RankAllocator allocator;
    g_rest = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
  });
}

}  // namespace

RankMemory::RankMemory() {
  EXPERTMESH_CHECK(t_slot == nullptr, "two arenas in one thread");
  use_rank_allocator();
  t_slot = try_take_slot();
}

RankMemory::~RankMemory() {
  if (t_slot != nullptr) leave(*t_slot);
  t_slot = nullptr;
}

RankMemoryUse rank_memory_use() {
  if (t_slot == nullptr) return {};
  return {.peak_bytes = static_cast<int64_t>(t_slot->arena->peak_bytes()),
          .extent_bytes = static_cast<int64_t>(t_slot->arena->extent_bytes())};
}

}  // namespace expertmesh::ops
