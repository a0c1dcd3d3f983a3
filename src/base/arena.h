// SPDX-License-Identifier: Apache-2.0
// Large blocks out of one reserved range of addresses: the smallest free block that fits, neighbours joined when they
// are freed. What was used once stays in the process and is used again, in huge pages where the system has them.
// Beside malloc because small and lasting objects never stand between the large ones: a heap in which they do grows
// with each batch of another length. Owns: the range. Threads: any (one lock). Memory: at most the range; what does not
// fit is the caller's to get elsewhere.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace expertmesh::base {

class Arena {
 public:
  // `range_bytes` of addresses, not of memory: pages come when they are written. Nothing fits where the system refuses.
  explicit Arena(size_t range_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // At a cache line's border; nullptr where nothing is free that is large enough.
  void* try_allocate(size_t bytes);
  // One that try_allocate gave.
  void free(void* block);

  // The memory goes back to the system, the addresses stay. Nothing is in use.
  void give_back_pages();

  bool owns(const void* address) const {
    return address >= begin_ && address < static_cast<const std::byte*>(begin_) + range_bytes_;
  }
  size_t used_bytes() const;
  size_t peak_bytes() const;    // of used_bytes()
  size_t extent_bytes() const;  // of the range, up to the highest address that was ever used

 private:
  void add_free(std::byte* block, size_t bytes);
  void remove_free(std::map<std::byte*, size_t>::iterator block);

  std::byte* begin_ = nullptr;
  size_t range_bytes_ = 0;
  mutable std::mutex mutex_;
  std::map<std::byte*, size_t> used_, free_;              // by address
  std::set<std::pair<size_t, std::byte*>> free_by_size_;  // the same as free_
  size_t used_bytes_ = 0, peak_bytes_ = 0, extent_bytes_ = 0;
};

}  // namespace expertmesh::base
