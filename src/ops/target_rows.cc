// SPDX-License-Identifier: Apache-2.0
#include "ops/target_rows.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"

namespace expertmesh::ops {

TargetRows::TargetRows(const at::Tensor& targets_T, int64_t vocab) : num_tokens_(targets_T.numel()) {
  const at::Tensor targets = targets_T.contiguous();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < num_tokens_; ++row) {
    if (target[row] == kNoTarget) continue;
    EXPERTMESH_CHECK(target[row] >= 0 && target[row] < vocab, "target {} of {} ids", target[row], vocab);
    ids_.push_back(row);
    targets_.push_back(target[row]);
  }
}

at::Tensor TargetRows::gather(const at::Tensor& x_TH) const {
  if (size() == num_tokens_) return x_TH;
  return x_TH.index_select(0, at::from_blob(const_cast<int64_t*>(ids_.data()), {size()}, at::kLong));
}

at::Tensor TargetRows::scatter(const at::Tensor& x) const {
  if (size() == num_tokens_) return x;
  at::Tensor out = at::zeros({num_tokens_, x.size(1)}, x.options());
  out.index_copy_(0, at::from_blob(const_cast<int64_t*>(ids_.data()), {size()}, at::kLong), x);
  return out;
}

std::vector<double> TargetRows::factors(const at::Tensor& weights_T, double scale) const {
  std::vector<double> factors(ids_.size(), scale);
  if (!weights_T.defined()) return factors;
  const at::Tensor weights = weights_T.contiguous();
  const float* weight = weights.const_data_ptr<float>();
  for (size_t i = 0; i < ids_.size(); ++i) factors[i] *= weight[ids_[i]];
  return factors;
}

}  // namespace expertmesh::ops
