// SPDX-License-Identifier: Apache-2.0
#include "ops/mrope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <numeric>
#include <vector>

#include "base/check.h"

namespace expertmesh::ops {
namespace {

// The axis of each column.
at::Tensor axes_of_columns(int64_t columns, std::span<const int64_t> sections) {
  const auto axes = static_cast<int64_t>(sections.size());
  std::vector<int64_t> axis(static_cast<size_t>(columns), 0);
  for (int64_t r = 0; r < columns; ++r) {
    const auto candidate = static_cast<size_t>(r % axes);
    if (r / axes < sections[candidate]) axis[static_cast<size_t>(r)] = r % axes;
  }
  return at::tensor(axis, at::kLong);
}

}  // namespace

TokenAngles interleaved_angles(const at::Tensor& positions_AT, const at::Tensor& cos_PR, const at::Tensor& sin_PR,
                               std::span<const int64_t> sections) {
  const int64_t columns = cos_PR.size(1);
  EXPERTMESH_CHECK(!sections.empty() && positions_AT.size(0) == static_cast<int64_t>(sections.size()),
                   "{} position axes, {} sections", positions_AT.size(0), sections.size());
  const int64_t total = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  EXPERTMESH_CHECK(total == columns, "sections of {} columns, tables of {}", total, columns);
  // [T, R]: the position of each column's axis.
  const at::Tensor rows = positions_AT.index_select(0, axes_of_columns(columns, sections)).transpose(0, 1).contiguous();
  return {at::arange(positions_AT.size(1), at::kLong), cos_PR.gather(0, rows), sin_PR.gather(0, rows)};
}

}  // namespace expertmesh::ops
