// SPDX-License-Identifier: Apache-2.0
// From tensors to the pointers of the kernels in cpu/.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/check.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops {

template <typename T>
const T* raw(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* mutable_raw(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// Calls body(T{}) with the element type of a dtype: float or cpu::Bf16.
template <typename Body>
void with_element_type(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) {
    body(float{});
  } else {
    EXPERTMESH_CHECK(dtype == at::kBFloat16, "native operators take fp32 and bf16, got {}", c10::toString(dtype));
    body(cpu::Bf16{});
  }
}

}  // namespace expertmesh::ops
