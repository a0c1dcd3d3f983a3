// SPDX-License-Identifier: Apache-2.0
// Uninitialised tensors. In test builds (EXPERTMESH_POISON), and in tests that ask for it, they are filled with NaN, so
// that a value that was never written cannot pass for a result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace expertmesh::moe {

at::Tensor new_scratch(c10::IntArrayRef shape, at::ScalarType dtype);

// From now on, on all threads.
void TEST_poison_scratch(bool on);

}  // namespace expertmesh::moe
