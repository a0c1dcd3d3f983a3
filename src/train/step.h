// SPDX-License-Identifier: Apache-2.0
// One optimizer step: micro-batches forward and back, finish the reductions, agree that everything is finite, one norm
// over both meshes, one clipping coefficient, update.
#pragma once

#include <string>
#include <vector>

#include "comm/ledger.h"
#include "config/config.h"
#include "data/batch.h"
#include "train/layer_walk.h"
#include "train/loss.h"
#include "train/optimizer.h"

namespace expertmesh::train {

// Of the routers' balance loss (moe/balance_loss.h).
struct BalanceOptions {
  double coefficient = 0;    // 0: there is none
  bool is_by_layer = false;  // each layer evens itself out; else all together
};
BalanceOptions balance_options(const config::ModelConfig& config);

struct StepOptions {
  double max_grad_norm = 1.0;
  double learning_rate = 0;
  int64_t step = -1;               // for messages
  comm::Ledger* ledger = nullptr;  // is told the step and the micro-batch
  BalanceOptions balance = {};
};

struct StepResult {
  double loss = 0;          // of all ranks and micro-batches, without the balance loss; the same on all ranks, as is
                            // everything here
  double balance_loss = 0;  // of routers, before its coefficient; 0 where there is none
  double grad_norm = 0;     // before clipping
  double expert_norm = 0;   // of the expert parameters alone
  double clip_coefficient = 1;
  int64_t tokens = 0;       // all valid tokens of the step
  bool is_applied = true;   // false: nothing was updated
  std::string skip_reason;  // why: the first non-finite value and its rank, or that there was nothing to learn from
  bool is_nonfinite = false;
  int nonfinite_rank = -1;  // the first rank that met such a value
};

// Collective over the world. Either all ranks update or none.
StepResult train_step(ShardedModel& model, LayerWalk& walk, const Loss& loss, Optimizer& optimizer,
                      const std::vector<data::MicroBatch>& micro_batches, const StepOptions& options);

}  // namespace expertmesh::train
