// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_rows.h"

#include <cstring>

namespace expertmesh::ops::cpu {
namespace {

constexpr int64_t kStrip = 4 * kLanes;  // columns summed at a time, in registers

// `columns` <= kStrip columns of one token.
template <typename T>
EXPERTMESH_INLINE void combine_strip(const T* rows, T* out, const CombineShape& shape, int64_t token, int64_t column,
                                     int64_t columns) {
  Vec sums[kStrip / kLanes] = {};
  for (int64_t k = 0; k < shape.top_k; ++k) {
    const int64_t choice = token * shape.top_k + k;
    const int64_t row = shape.row_of_choice ? shape.row_of_choice[choice] : choice;
    const float weight = shape.weights ? shape.weights[choice] : 1.0F;
    const T* values = rows + row * shape.width + column;
    for (int64_t i = 0; i < columns; i += kLanes) sums[i / kLanes] += weight * load(values + i, lanes_at(i, columns));
  }
  T* to = out + token * shape.width + column;
  for (int64_t i = 0; i < columns; i += kLanes) store(to + i, sums[i / kLanes], lanes_at(i, columns));
}

template <typename T>
EXPERTMESH_INLINE void combine(const T* rows, T* out, const CombineShape& shape, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    int64_t column = 0;
    for (; column + kStrip <= shape.width; column += kStrip) combine_strip(rows, out, shape, token, column, kStrip);
    if (column < shape.width) combine_strip(rows, out, shape, token, column, shape.width - column);
  }
}

}  // namespace

void gather_rows(IndexedRows<const std::byte> source, int64_t row_bytes, void* out, int64_t begin, int64_t end) {
  auto* to = static_cast<std::byte*>(out);
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(to + row * row_bytes, source.row(row), static_cast<size_t>(row_bytes));
  }
}

void scatter_rows(const void* source, int64_t row_bytes, IndexedRows<std::byte> out, int64_t begin, int64_t end) {
  const auto* from = static_cast<const std::byte*>(source);
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(out.row(row), from + row * row_bytes, static_cast<size_t>(row_bytes));
  }
}

EXPERTMESH_CPU_KERNEL(void, combine_rows,
                      (const float* rows, float* out, const CombineShape& shape, int64_t begin, int64_t end), combine,
                      (rows, out, shape, begin, end))
EXPERTMESH_CPU_KERNEL(void, combine_rows,
                      (const Bf16* rows, Bf16* out, const CombineShape& shape, int64_t begin, int64_t end), combine,
                      (rows, out, shape, begin, end))

}  // namespace expertmesh::ops::cpu
