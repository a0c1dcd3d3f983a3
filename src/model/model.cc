// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

namespace expertmesh::model {

int64_t Model::total_parameters() const {
  int64_t total = 0;
  for (const shard::Parameter* parameter : parameters()) total += parameter->global_numel();
  return total;
}

int64_t Model::active_parameters() const {
  const Sizes s = sizes();
  int64_t active = 0;
  for (const shard::Parameter* parameter : parameters()) {
    const int64_t size = parameter->global_numel();
    active += parameter->is_expert() ? size / s.experts * s.experts_per_token : size;
  }
  return active;
}

}  // namespace expertmesh::model
