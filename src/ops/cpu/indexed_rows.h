// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix, in its order or through a list: so that nobody copies rows only to have them side by side. No
// torch.
#pragma once

#include <cstdint>

namespace expertmesh::ops::cpu {

// Row r of a matrix is data[index[r] * stride]; index nullptr: r.
template <typename T>
struct IndexedRows {
  T* data = nullptr;
  int64_t stride = 0;
  const int64_t* index = nullptr;

  T* row(int64_t r) const { return data + (index ? index[r] : r) * stride; }
  IndexedRows from(int64_t first) const {
    return index ? IndexedRows{data, stride, index + first} : IndexedRows{data + first * stride, stride, nullptr};
  }
};

}  // namespace expertmesh::ops::cpu
