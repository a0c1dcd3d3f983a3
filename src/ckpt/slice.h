// SPDX-License-Identifier: Apache-2.0
// A hyper-rectangle of a tensor, and the contiguous runs of elements that it is made of. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace expertmesh::ckpt {

using Shape = std::vector<int64_t>;

// Elements of a shape; nothing where the product does not fit int64.
std::optional<int64_t> try_numel(const Shape& shape);
// The same for a shape known to be sound. Programmer error otherwise.
int64_t numel(const Shape& shape);

// "[2, 3]"; "[]" for a scalar.
std::string shape_text(const Shape& shape);

// [begin, end) along every dim, in the coordinates of the whole tensor.
struct Slice {
  Shape begin;
  Shape end;

  static Slice whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }
  Shape shape() const;
  int64_t numel() const;
  bool fits(const Shape& whole) const;  // same rank, 0 <= begin <= end <= size
  std::string text() const;             // "[0:4, 16:32]"
  bool operator==(const Slice& other) const = default;
};

// The common part of two slices of one tensor; nothing where they share no element.
std::optional<Slice> intersect(const Slice& a, const Slice& b);

// Two nested loops over runs: `blocks` blocks of `rows` runs of `run` elements. Within a block the runs are strided
// equally on both sides.
struct RunBlock {
  int64_t source = 0;         // element offset of the first run in the source tensor
  int64_t target = 0;         // and in the target tensor
  int64_t rows = 0;           // number of runs
  int64_t run = 0;            // elements of each
  int64_t source_stride = 0;  // elements from one run to the next
  int64_t target_stride = 0;
};

// Visits the elements of `part`, a slice that lies in both tensors: `source_box` and `target_box` say which slices of
// the common tensor the two contiguous buffers hold.
void for_each_block(const Slice& part, const Slice& source_box, const Slice& target_box,
                    const std::function<void(const RunBlock&)>& visit);

}  // namespace expertmesh::ckpt
