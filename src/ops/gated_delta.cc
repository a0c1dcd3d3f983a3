// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_delta.h"

#include "base/check.h"
#include "ops/documents.h"

namespace expertmesh::ops {
namespace {

void check_shape(const at::Tensor& tensor, at::IntArrayRef shape, const char* name) {
  EXPERTMESH_CHECK(tensor.sizes() == shape, "{} has {} elements in {} dims", name, tensor.numel(), tensor.dim());
}

}  // namespace

void check_input(const GatedDeltaInput& input) {
  const at::Tensor &q = input.q_TKD, &v = input.v_TVE;
  EXPERTMESH_CHECK(q.dim() == 3 && v.dim() == 3, "queries of {} dims, values of {}", q.dim(), v.dim());
  const int64_t tokens = q.size(0), value_heads = v.size(1);
  const auto documents = static_cast<int64_t>(input.cu_seqlens.size()) - 1;
  check_shape(input.k_TKD, q.sizes(), "k");
  check_shape(v, {tokens, value_heads, v.size(2)}, "v");
  check_shape(input.g_TV, {tokens, value_heads}, "g");
  check_shape(input.beta_TV, {tokens, value_heads}, "beta");
  EXPERTMESH_CHECK(q.size(1) > 0 && value_heads % q.size(1) == 0, "{} key heads, {} value heads", q.size(1),
                   value_heads);
  EXPERTMESH_CHECK(q.scalar_type() == v.scalar_type() && input.k_TKD.scalar_type() == v.scalar_type(),
                   "q is {}, k {}, v {}", c10::toString(q.scalar_type()), c10::toString(input.k_TKD.scalar_type()),
                   c10::toString(v.scalar_type()));
  EXPERTMESH_CHECK(input.chunk_size == 16 || input.chunk_size == 32 || input.chunk_size == 64, "chunks of {} tokens",
                   input.chunk_size);
  check_documents(input.cu_seqlens, tokens);
  if (input.initial_state_BVDE.defined()) {
    check_shape(input.initial_state_BVDE, {documents, value_heads, q.size(2), v.size(2)}, "initial_state");
  }
}

void check_input(const CausalConvInput& input) {
  const at::Tensor &x = input.x_TC, &weight = input.weight_CW;
  EXPERTMESH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(0) && weight.size(1) > 0,
                   "x has {} dims, the weight {}", x.dim(), weight.dim());
  EXPERTMESH_CHECK(x.scalar_type() == weight.scalar_type(), "x is {}, the weight {}", c10::toString(x.scalar_type()),
                   c10::toString(weight.scalar_type()));
  check_documents(input.cu_seqlens, x.size(0));
  if (input.initial_state_BCW.defined()) {
    const auto documents = static_cast<int64_t>(input.cu_seqlens.size()) - 1;
    check_shape(input.initial_state_BCW, {documents, x.size(1), weight.size(1) - 1}, "initial_state");
    EXPERTMESH_CHECK(input.initial_state_BCW.scalar_type() == x.scalar_type(), "the state of a convolution is {}",
                     c10::toString(input.initial_state_BCW.scalar_type()));
  }
}

}  // namespace expertmesh::ops
