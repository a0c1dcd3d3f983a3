// SPDX-License-Identifier: Apache-2.0
// Updates the shards that this rank holds from their fp32 gradients. No communication: replicas hold equal gradients
// and make equal updates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"
#include "shard/parameter.h"

namespace expertmesh::train {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update of every trained parameter with gradient grad() * gradient_scale.
  virtual void step(double learning_rate, double gradient_scale) = 0;
  // Updates made so far.
  virtual int64_t updates() const = 0;
  // Bytes of state on this rank (moments and masters).
  virtual int64_t state_bytes() const = 0;
};

// adamw (torch.optim.AdamW's formulas) or sgd. State is allocated at once; masters are read from the shards, so call it
// after the weights are loaded.
std::unique_ptr<Optimizer> make_optimizer(const config::OptimConfig& config, std::vector<shard::Parameter*> parameters);

}  // namespace expertmesh::train
