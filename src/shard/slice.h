// SPDX-License-Identifier: Apache-2.0
// Slice arithmetic of sharded tensors: which part of which dim a rank holds. No torch, no communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace expertmesh::shard {

// [begin, end) along one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `size` elements over `parts`: chunks of ceil(size / parts), the last ones short or empty, as
// torch.chunk and FSDP2 cut them.
Range chunk_range(int64_t size, int64_t parts, int64_t index);

// A hyper-rectangle of a tensor in global coordinates, one Range a dim.
struct Box {
  std::vector<Range> ranges;

  static Box whole(const std::vector<int64_t>& shape);
  // Narrows `dim` to part `index` of `parts` of what is left of it: several placements narrow one after the other.
  void narrow(int dim, int64_t parts, int64_t index);
  std::vector<int64_t> shape() const;
  int64_t numel() const;
  std::string text() const;  // "[0:4, 16:32]"
  bool operator==(const Box&) const = default;
};

}  // namespace expertmesh::shard
