// SPDX-License-Identifier: Apache-2.0
// The calls of the tensor library in the trace of the calling thread, with the operations of its matrix products: those
// that stand in no operator's span and in no other call. Threads: from construction to destruction, on this one.
#pragma once

#include <cstdint>

namespace expertmesh::ops {

class LibrarySpans {
 public:
  LibrarySpans();
  ~LibrarySpans();
  LibrarySpans(const LibrarySpans&) = delete;
  LibrarySpans& operator=(const LibrarySpans&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace expertmesh::ops
