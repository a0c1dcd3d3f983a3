// SPDX-License-Identifier: Apache-2.0
// Reductions of one element range over several sources, always in the order of the sources: every engine uses these, so
// that results are equal to the bit. The result may be one of the sources (same start).
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace expertmesh::comm {

// kF32 or kBF16 sources, fp32 result: out = sum, or out += sum.
void sum_to_float(std::span<const void* const> sources, DType dtype, float* out, int64_t count, bool accumulate);

// kF32, kF64, kI64 in their own type; kBF16 in fp32 and rounded once. NaN wins in kMax and kMin.
void reduce_in_place(std::span<const void* const> sources, DType dtype, ReduceOp op, void* out, int64_t count);

}  // namespace expertmesh::comm
