// SPDX-License-Identifier: Apache-2.0
// Uninitialised tensors for results and scratch; NaN-filled in test builds (EXPERTMESH_POISON), so that an element that
// is never written shows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <limits>

namespace expertmesh::ops {

inline at::Tensor new_tensor(at::IntArrayRef shape, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty(shape, options);
#ifdef EXPERTMESH_POISON
  tensor.fill_(std::numeric_limits<double>::quiet_NaN());
#endif
  return tensor;
}

// Of the same shape and dtype, contiguous.
inline at::Tensor new_like(const at::Tensor& like) { return new_tensor(like.sizes(), like.options()); }

}  // namespace expertmesh::ops
