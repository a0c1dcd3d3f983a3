// SPDX-License-Identifier: Apache-2.0
#include "shard/slice.h"

#include <algorithm>

#include "base/check.h"

namespace expertmesh::shard {

Range chunk_range(int64_t size, int64_t parts, int64_t index) {
  EXPERTMESH_CHECK(size >= 0 && parts > 0 && index >= 0 && index < parts, "size {}, parts {}, index {}", size, parts,
                   index);
  const int64_t chunk = (size + parts - 1) / parts;
  const int64_t begin = std::min(index * chunk, size);
  return {begin, std::min(begin + chunk, size)};
}

Box Box::whole(const std::vector<int64_t>& shape) {
  Box box;
  for (const int64_t size : shape) box.ranges.push_back({0, size});
  return box;
}

void Box::narrow(int dim, int64_t parts, int64_t index) {
  EXPERTMESH_CHECK(dim >= 0 && dim < static_cast<int>(ranges.size()), "dim {} of {}", dim, ranges.size());
  Range& range = ranges[dim];
  const Range part = chunk_range(range.size(), parts, index);
  range = {range.begin + part.begin, range.begin + part.end};
}

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> shape;
  for (const Range& range : ranges) shape.push_back(range.size());
  return shape;
}

int64_t Box::numel() const {
  int64_t numel = 1;
  for (const Range& range : ranges) numel *= range.size();
  return numel;
}

std::string Box::text() const {
  std::string text = "[";
  for (size_t i = 0; i < ranges.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", ranges[i].begin, ranges[i].end);
  }
  return text + "]";
}

}  // namespace expertmesh::shard
