// SPDX-License-Identifier: Apache-2.0
// The training run of one rank, from meshes to the saved model: the straight line of ARCHITECTURE.md.
#pragma once

#include "comm/world.h"
#include "train/job.h"
#include "train/observer.h"

namespace expertmesh::train {

// Collective over the world. `observer` is shown things on global rank 0 only and asked for its wish to stop on all.
// Returns who ended the run before its last step, the same on all ranks; the model is saved in any case. Errors end the
// run on all ranks.
Stop run_training(comm::World& world, const Job& job, Observer& observer);

}  // namespace expertmesh::train
