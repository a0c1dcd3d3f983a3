// SPDX-License-Identifier: Apache-2.0
#include "ckpt/slice.h"

#include <algorithm>

#include "base/check.h"

namespace expertmesh::ckpt {
namespace {

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

int64_t offset_in(const Slice& box, const Shape& strides, const Shape& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += (at[d] - box.begin[d]) * strides[d];
  return offset;
}

}  // namespace

std::optional<int64_t> try_numel(const Shape& shape) {
  int64_t product = 1;
  bool has_zero = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    has_zero = has_zero || size == 0;
  }
  if (has_zero) return 0;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

int64_t numel(const Shape& shape) {
  const auto count = try_numel(shape);
  EXPERTMESH_CHECK(count.has_value(), "shape {}", shape_text(shape));
  return *count;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

Shape Slice::shape() const {
  Shape extents(begin.size());
  for (size_t d = 0; d < begin.size(); ++d) extents[d] = end[d] - begin[d];
  return extents;
}

int64_t Slice::numel() const { return ckpt::numel(shape()); }

bool Slice::fits(const Shape& whole) const {
  if (begin.size() != whole.size() || end.size() != whole.size()) return false;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (begin[d] < 0 || begin[d] > end[d] || end[d] > whole[d]) return false;
  }
  return true;
}

std::string Slice::text() const {
  std::string text = "[";
  for (size_t d = 0; d < begin.size(); ++d) text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", begin[d], end[d]);
  return text + "]";
}

std::optional<Slice> intersect(const Slice& a, const Slice& b) {
  EXPERTMESH_CHECK(a.begin.size() == b.begin.size(), "{} and {}", a.text(), b.text());
  Slice part = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    part.begin[d] = std::max(a.begin[d], b.begin[d]);
    part.end[d] = std::min(a.end[d], b.end[d]);
    if (part.begin[d] >= part.end[d]) return std::nullopt;
  }
  return part;
}

void for_each_block(const Slice& part, const Slice& source_box, const Slice& target_box,
                    const std::function<void(const RunBlock&)>& visit) {
  const Shape extents = part.shape(), source_shape = source_box.shape(), target_shape = target_box.shape();
  const Shape source_strides = strides_of(source_shape), target_strides = strides_of(target_shape);
  // Inner dims that both sides hold whole form one run, together with the first one that is cut.
  size_t outer = part.begin.size();
  RunBlock block{.rows = 1, .run = 1};
  while (outer > 0) {
    --outer;
    block.run *= extents[outer];
    if (extents[outer] != source_shape[outer] || extents[outer] != target_shape[outer]) break;
  }
  // The next dim out gives the rows of a block; all others are walked here.
  if (outer > 0) {
    --outer;
    block.rows = extents[outer];
    block.source_stride = source_strides[outer];
    block.target_stride = target_strides[outer];
  }
  Shape at = part.begin;
  while (true) {
    block.source = offset_in(source_box, source_strides, at);
    block.target = offset_in(target_box, target_strides, at);
    visit(block);
    size_t d = outer;
    while (d > 0 && ++at[d - 1] == part.end[d - 1]) {
      at[d - 1] = part.begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace expertmesh::ckpt
