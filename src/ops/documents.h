// SPDX-License-Identifier: Apache-2.0
// Documents laid end to end: document b is the rows [cu_seqlens[b], cu_seqlens[b + 1]).
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"

namespace expertmesh::ops {

// Programmer error: documents that are not `tokens` rows one after the other.
inline void check_documents(std::span<const int64_t> cu_seqlens, int64_t tokens) {
  EXPERTMESH_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == tokens,
                   "documents of {} tokens, {} rows", cu_seqlens.empty() ? 0 : cu_seqlens.back(), tokens);
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    EXPERTMESH_CHECK(cu_seqlens[b] <= cu_seqlens[b + 1], "document {} ends at {} and begins at {}", b,
                     cu_seqlens[b + 1], cu_seqlens[b]);
  }
}

}  // namespace expertmesh::ops
