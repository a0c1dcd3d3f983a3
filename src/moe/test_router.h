// SPDX-License-Identifier: Apache-2.0
// A router for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "moe/router.h"
#include "shard/unit.h"

namespace expertmesh::moe {

// A router whose gate is `weight`, whole on this rank.
struct WholeRouter {
  WholeRouter(const at::Tensor& weight, int64_t top_k, bool norm = true)
      : router("model.layers.0.mlp.gate", {weight.size(1), weight.size(0), top_k, norm}),
        unit("gate", router.parameters(), shard::GatherMode::kPerParameter, &pool) {
    shard::Parameter& parameter = *router.own_parameters().front();
    parameter.materialize(weight.scalar_type());
    const at::NoGradGuard no_grad;
    parameter.local().copy_(weight);
    unit.unshard();
    unit.wait();
  }
  Router* operator->() { return &router; }

  shard::BufferPool pool;
  Router router;
  shard::Unit unit;
};

}  // namespace expertmesh::moe
