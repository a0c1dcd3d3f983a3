// SPDX-License-Identifier: Apache-2.0
#include "model/common/mlp.h"

namespace expertmesh::model {

DenseMlp::DenseMlp(const std::string& path, int64_t hidden, int64_t intermediate)
    : Module(path),
      gate_proj_(path + ".gate_proj", hidden, intermediate),
      up_proj_(path + ".up_proj", hidden, intermediate),
      down_proj_(path + ".down_proj", intermediate, hidden) {
  add_child(gate_proj_);
  add_child(up_proj_);
  add_child(down_proj_);
}

at::Tensor DenseMlp::forward(const at::Tensor& hidden_TH, const ops::Operators& ops) const {
  enter();
  return down_proj_.forward(ops.swiglu(gate_proj_.forward(hidden_TH), up_proj_.forward(hidden_TH)));
}

}  // namespace expertmesh::model
