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

class RmsNorm : public shard::Module {
 public:
  RmsNorm(std::string path, int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x, const ops::Operators& ops) const;

 private:
  shard::Parameter& weight_;
  double eps_;
};

}  // namespace expertmesh::model
