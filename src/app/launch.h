// SPDX-License-Identifier: Apache-2.0
// Starts the ranks: threads of this process (--ranks N), or this process as one rank of an outside launcher (torchrun,
// Slurm, Open MPI), or one rank.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "comm/world.h"

namespace expertmesh::app {

struct LaunchOptions {
  std::optional<int> ranks;             // --ranks
  std::optional<int> threads_per_rank;  // --threads-per-rank
  std::chrono::seconds timeout{18000};  // dist_timeout
};

// `prepare(world size)` runs once in this process before its ranks start, `body` on every rank. The first cause of a
// failure is thrown. Throws kUsage where --ranks and a launcher's variables are both there.
void launch(const LaunchOptions& options, const std::function<void(int world_size)>& prepare,
            const std::function<void(comm::World&)>& body);

// Intra-op threads of a rank: the flag, else what the cores allow.
int threads_per_rank(const LaunchOptions& options, int ranks_on_this_host);

}  // namespace expertmesh::app
