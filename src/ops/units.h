// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work of unequal size, taken one after the other by the caller's intra-op threads, each of which
// has scratch memory of its own. Which thread takes which piece is open: pieces write to different places.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ops/new_tensor.h"
#include "ops/raw.h"

namespace expertmesh::ops {

// body(index, scratch) for each index below `count`; scratch has `scratch_size` floats from a cache line's border on.
template <typename Body>
void for_each_unit(int64_t count, int64_t scratch_size, const Body& body) {
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), count), 1, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    const at::Tensor scratch = new_tensor({scratch_size}, at::kFloat);
    for (int64_t i = next++; i < count; i = next++) body(i, mutable_raw<float>(scratch));
  });
}

}  // namespace expertmesh::ops
