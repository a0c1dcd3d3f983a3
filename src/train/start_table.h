// SPDX-License-Identifier: Apache-2.0
// What a run prints once before its first step: model, mesh, memory by kind, kernels, data.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "train/job.h"
#include "train/observer.h"
#include "train/optimizer.h"
#include "train/sharded_model.h"

namespace expertmesh::train {

std::vector<TableSection> start_table(const Job& job, ShardedModel& model, const Optimizer& optimizer,
                                      const comm::World& world, int64_t total_steps, const std::string& output_dir);

// "12.3 M", "4.0 GiB": three or four significant digits.
std::string human_count(double count);
std::string human_bytes(double bytes);

}  // namespace expertmesh::train
