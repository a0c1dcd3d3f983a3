// SPDX-License-Identifier: Apache-2.0
#include "ops/operator_work.h"

#include <algorithm>

namespace expertmesh::ops {
namespace {

double targets_in(const at::Tensor& targets_T) {
  const int64_t* targets = targets_T.const_data_ptr<int64_t>();
  return static_cast<double>(
      std::count_if(targets, targets + targets_T.numel(), [](int64_t target) { return target >= 0; }));
}

// `products` of the rows with a target and the table.
base::Work head_work(const at::Tensor& weight_VH, const at::Tensor& targets_T, int products) {
  return {.flops = 2.0 * targets_in(targets_T) * static_cast<double>(weight_VH.numel()) * products,
          .bytes = bytes_of(weight_VH) * products};
}

}  // namespace

double attention_flops(std::span<const int64_t> cu_seqlens, int64_t heads, int64_t head_dim, int products) {
  double pairs = 0;
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const auto length = static_cast<double>(cu_seqlens[d + 1] - cu_seqlens[d]);
    pairs += length * (length + 1) / 2;
  }
  return 2.0 * pairs * static_cast<double>(heads * head_dim) * products;
}

base::Work work_of(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                   std::span<const int64_t> cu_seqlens, double /*scale*/) {
  return {.flops = attention_flops(cu_seqlens, q_TND.size(1), q_TND.size(2), kAttentionProducts),
          .bytes = 2 * bytes_of(q_TND) + bytes_of(k_TMD) + bytes_of(v_TMD)};
}

base::Work work_of(const CrossEntropyInput& input) {
  const int products = 1 + (input.needs_grad_hidden ? 1 : 0) + (input.grad_weight_VH.defined() ? 1 : 0);
  return head_work(input.weight_VH, input.targets_T, products);
}

base::Work work_of(const GatedDeltaInput& input) {
  return {.flops = 0, .bytes = bytes_of(input.q_TKD) + bytes_of(input.k_TKD) + 2 * bytes_of(input.v_TVE)};
}

base::Work work_of(const CausalConvInput& input) { return {.flops = 0, .bytes = 2 * bytes_of(input.x_TC)}; }

base::Work work_of(const CachedAttentionInput& input) { return {.flops = 0, .bytes = 2 * bytes_of(input.q_TND)}; }

base::Work work_of(const at::Tensor& /*hidden_TH*/, const at::Tensor& weight_VH, const at::Tensor& targets_T) {
  return head_work(weight_VH, targets_T, 1);
}

}  // namespace expertmesh::ops
