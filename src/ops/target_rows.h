// SPDX-License-Identifier: Apache-2.0
// The rows of a micro-batch that have a target: only they reach the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace expertmesh::ops {

constexpr int64_t kNoTarget = -100;

class TargetRows {
 public:
  // targets_T: int64, kNoTarget or an id below `vocab` (anything else is a programmer error: data checks ids).
  TargetRows(const at::Tensor& targets_T, int64_t vocab);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<int64_t>& ids() const { return ids_; }          // row numbers, ascending
  const std::vector<int64_t>& targets() const { return targets_; }  // of those rows

  // Rows of x_TH; x itself where every row has a target.
  at::Tensor gather(const at::Tensor& x_TH) const;
  // The reverse, with zeros in the other rows.
  at::Tensor scatter(const at::Tensor& x) const;

  // Factor of each row's nll: scale times its weight (undefined weights: 1).
  std::vector<double> factors(const at::Tensor& weights_T, double scale) const;

 private:
  int64_t num_tokens_;
  std::vector<int64_t> ids_, targets_;
};

}  // namespace expertmesh::ops
