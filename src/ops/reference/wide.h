// SPDX-License-Identifier: Apache-2.0
// The dtype that the reference operators compute in: fp32, and fp64 for fp64, with which tests differentiate
// numerically.
#pragma once

#include <ATen/core/Tensor.h>

namespace expertmesh::ops::reference {

inline at::Tensor wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

}  // namespace expertmesh::ops::reference
