// SPDX-License-Identifier: Apache-2.0
// Uninitialised tensors for results and scratch; NaN-filled in test builds (EXPERTMESH_POISON) and in tests that ask
// for it, so that an element that is never written shows.
#pragma once

#include <ATen/core/Tensor.h>

namespace expertmesh::ops {

at::Tensor new_tensor(at::IntArrayRef shape, const at::TensorOptions& options);
at::Tensor new_tensor(at::IntArrayRef shape, at::ScalarType dtype);

// Of the same shape and dtype, contiguous.
at::Tensor new_like(const at::Tensor& like);

// Whether memory that nobody has written yet is NaN: for those who allocate it themselves.
bool poisons_new_memory();
void TEST_poison_new_memory(bool on);

}  // namespace expertmesh::ops
