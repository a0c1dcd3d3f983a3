// SPDX-License-Identifier: Apache-2.0
// Matrix products at the speed of the processor in any dtype. The library multiplies bf16 well only with AMX and with
// fast dot products: with those of Intel's processors it takes twice the time of fp32, with AVX-512 alone five times,
// without it a hundred times. There bf16 goes through fp32 in blocks; sums are fp32 and are rounded once, as the
// library's are.
#pragma once

#include <ATen/core/Tensor.h>

namespace expertmesh::ops {

// Whether products of this dtype go to the library as they are.
bool library_multiplies(at::ScalarType dtype);
// For tests: bf16 goes through fp32 on every processor.
void TEST_multiply_through_fp32(bool on);

// out [M, N] = a [M, K] b [K, N], any strides, one dtype. No graph. In fp32 a row of the result does not depend on how
// many there are: the library takes another path below kLeastRows rows, so these go as that many.
constexpr int64_t kLeastRows = 4;
void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

// While one lives, linear() in this thread reads weights where they lie for up to eight rows without a graph
// (cpu/few_rows.h): a token more costs what reading costs. The sums have another order than those of training.
class DecodingScope {
 public:
  DecodingScope();
  ~DecodingScope();
  DecodingScope(const DecodingScope&) = delete;
  DecodingScope& operator=(const DecodingScope&) = delete;

 private:
  bool before_;
};

// x [..., in] weight [out, in]^T (+ bias [out]). Differentiable.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace expertmesh::ops
