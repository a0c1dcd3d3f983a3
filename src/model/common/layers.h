// SPDX-License-Identifier: Apache-2.0
// The small modules that models share: a linear map and an RMS norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "ops/operators.h"
#include "shard/module.h"

namespace expertmesh::model {

// y = x W^T (+ b); weight [out, in].
class Linear : public shard::Module {
 public:
  Linear(std::string path, int64_t in, int64_t out, bool has_bias = false);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  shard::Parameter& weight_;
  shard::Parameter* bias_;  // nullptr: none
};

struct NormOptions {
  double eps = 1e-6;
  double weight_offset = 0.0;  // 1: the weight is kept as its distance from 1
};

class RmsNorm : public shard::Module {
 public:
  RmsNorm(std::string path, int64_t size, const NormOptions& options);
  at::Tensor forward(const at::Tensor& x, const ops::Operators& ops) const;

 private:
  shard::Parameter& weight_;
  NormOptions options_;
};

}  // namespace expertmesh::model
