// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace expertmesh::base {
namespace {

constexpr size_t kPage = 4096;
// Blocks of whole pages would all begin at the same place of a page, where loads wait for stores to other blocks.
constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(size_t range_bytes) {
  range_bytes = round_up(range_bytes, kHugePage);
  void* range = mmap(nullptr, range_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  begin_ = static_cast<std::byte*>(range);
  range_bytes_ = range_bytes;
  madvise(range, range_bytes, MADV_HUGEPAGE);  // a wish; systems without huge pages say no
  add_free(begin_, range_bytes_);
}

Arena::~Arena() {
  if (begin_ != nullptr) munmap(begin_, range_bytes_);
}

void* Arena::try_allocate(size_t bytes) {
  if (bytes > range_bytes_) return nullptr;
  bytes = round_up(std::max<size_t>(bytes, 1), kPage) + kLine;
  const std::lock_guard lock(mutex_);
  const auto found = free_by_size_.lower_bound({bytes, nullptr});
  if (found == free_by_size_.end()) return nullptr;
  const auto [size, block] = *found;
  remove_free(free_.find(block));
  if (size > bytes) add_free(block + bytes, size - bytes);
  used_.emplace(block, bytes);
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  extent_bytes_ = std::max(extent_bytes_, static_cast<size_t>(block + bytes - begin_));
  return block;
}

void Arena::free(void* block) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(static_cast<std::byte*>(block));
  EXPERTMESH_CHECK(used != used_.end(), "a block that is not in use is freed");
  std::byte* begin = used->first;
  size_t size = used->second;
  used_.erase(used);
  used_bytes_ -= size;
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      remove_free(before);
    }
  }
  if (after != free_.end() && begin + size == after->first) {
    size += after->second;
    remove_free(after);
  }
  add_free(begin, size);
}

void Arena::give_back_pages() {
  const std::lock_guard lock(mutex_);
  EXPERTMESH_CHECK(used_.empty(), "{} blocks are in use", used_.size());
  if (begin_ != nullptr) madvise(begin_, extent_bytes_, MADV_DONTNEED);
  peak_bytes_ = extent_bytes_ = 0;
}

void Arena::add_free(std::byte* block, size_t bytes) {
  free_.emplace(block, bytes);
  free_by_size_.emplace(bytes, block);
}

void Arena::remove_free(std::map<std::byte*, size_t>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_.erase(block);
}

size_t Arena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

size_t Arena::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

size_t Arena::extent_bytes() const {
  const std::lock_guard lock(mutex_);
  return extent_bytes_;
}

}  // namespace expertmesh::base
