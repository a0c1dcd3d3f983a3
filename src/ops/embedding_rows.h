// SPDX-License-Identifier: Apache-2.0
// The gradient of an embedding's table, as a sum into the rows that tokens used.
#pragma once

#include <ATen/core/Tensor.h>

namespace expertmesh::ops {

// sum_VH[ids_T[t]] += rows_TH[t] for each t; no other row is read or written. Rows of one id are added in order of t,
// whatever the threads. sum_VH is fp32 and contiguous, rows fp32 or bf16; ids are below V (data checks them).
void add_to_rows(const at::Tensor& sum_VH, const at::Tensor& ids_T, const at::Tensor& rows_TH);

}  // namespace expertmesh::ops
