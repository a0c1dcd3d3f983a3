// SPDX-License-Identifier: Apache-2.0
// Between a model directory and the shards of a rank.
#pragma once

#include <string>

#include "ckpt/load_plan.h"
#include "train/observer.h"
#include "train/sharded_model.h"

namespace expertmesh::train {

// Fills every parameter's shard from the plan: this rank's slices and nothing else.
void load_weights(const ckpt::LoadPlan& plan, ShardedModel& model);

// Saves the model under `directory` in the source's layout; each rank writes what it is the primary owner of.
// Collective over the world. `observer` (may be null) hears of the progress.
void save_weights(const ckpt::LoadPlan& plan, ShardedModel& model, const std::string& directory, bool bf16,
                  Observer* observer);

}  // namespace expertmesh::train
