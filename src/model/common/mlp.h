// SPDX-License-Identifier: Apache-2.0
// A gated MLP: down(silu(gate x) * up x).
#pragma once

#include <string>

#include "model/common/layers.h"

namespace expertmesh::model {

class DenseMlp : public shard::Module {
 public:
  DenseMlp(const std::string& path, int64_t hidden, int64_t intermediate);
  at::Tensor forward(const at::Tensor& hidden_TH, const ops::Operators& ops) const;

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};

}  // namespace expertmesh::model
