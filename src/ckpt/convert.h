// SPDX-License-Identifier: Apache-2.0
// Element conversions between the float types of tensor files. Rounds to nearest even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace expertmesh::ckpt {

using base::DType;

// Whether convert_elements knows this pair: equal types; any float to kF32 or kBF16; kF32 or kBF16 to kF32, kBF16, kF16
// or kF64.
bool can_convert(DType from, DType to);

// `count` elements, contiguous and aligned to nothing. The buffers do not overlap.
void convert_elements(const void* from, DType from_type, void* to, DType to_type, int64_t count);

}  // namespace expertmesh::ckpt
