// SPDX-License-Identifier: Apache-2.0
// From a job to this rank's meshes and its part of the model.
#pragma once

#include <memory>

#include "comm/mesh.h"
#include "comm/world.h"
#include "train/job.h"
#include "train/sharded_model.h"

namespace expertmesh::train {

// Collective over the world.
std::shared_ptr<const comm::Meshes> build_meshes(comm::World& world, const Job& job);

// Allocated and loaded.
std::unique_ptr<ShardedModel> build_loaded_model(const Job& job, std::shared_ptr<const comm::Meshes> meshes);

// Allocated, not loaded.
std::unique_ptr<ShardedModel> build_sharded_model(const Job& job, std::shared_ptr<const comm::Meshes> meshes);

}  // namespace expertmesh::train
