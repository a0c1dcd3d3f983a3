// SPDX-License-Identifier: Apache-2.0
// Memory for tests: a read or write beside it ends the process.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>

#include "base/check.h"

namespace expertmesh::ops::cpu {

enum class Edge { kEnd, kBegin };

// `size` elements with memory behind them, or before them, that must not be touched.
template <typename T>
class GuardedBuffer {
 public:
  GuardedBuffer(size_t size, Edge edge) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (size * sizeof(T) + page - 1) / page * page;
    bytes_ = inside + 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPERTMESH_CHECK(memory_ != MAP_FAILED && mprotect(memory_ + page, inside, PROT_READ | PROT_WRITE) == 0);
    data_ = reinterpret_cast<T*>(memory_ + page + (edge == Edge::kEnd ? inside - size * sizeof(T) : 0));
    size_ = size;
  }
  ~GuardedBuffer() { munmap(memory_, bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() const { return data_; }
  std::span<T> all() const { return {data_, size_}; }

 private:
  char* memory_;
  size_t bytes_, size_;
  T* data_;
};

}  // namespace expertmesh::ops::cpu
