// SPDX-License-Identifier: Apache-2.0
#include "app/launch.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "app/error_report.h"
#include "base/error.h"
#include "base/fault.h"

namespace expertmesh::app {
namespace {

constexpr int kMaxRanks = 256;

void check_ranks(int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks) return;
  throw base::make_error(base::Code::kUsage, "app/ranks", "--ranks {} is not from 1 to {}", ranks, kMaxRanks)
      .hint("A rank is a thread of this program; use as many as there are cores, or a launcher for more machines.");
}

// A thread that is stuck after an abort cannot be ended: say why the run ends and leave without destructors.
[[noreturn]] void leave_stuck(const base::Error& cause) {
  const int code = report_error(cause);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int threads_per_rank(const LaunchOptions& options, int ranks_on_this_host) {
  if (options.threads_per_rank) return std::max(1, *options.threads_per_rank);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks_on_this_host));
}

void launch(const LaunchOptions& options, const std::function<void(int)>& prepare,
            const std::function<void(comm::World&)>& body) {
  const comm::WorldOptions world_options{.timeout = options.timeout};
  const auto run_rank = [&](comm::World& world) {
    at::set_num_threads(threads_per_rank(options, world.local_size()));
    body(world);
  };
  if (options.ranks) {
    check_ranks(*options.ranks);
    prepare(*options.ranks);
    if (*options.ranks > 1) {
      comm::run_threads(*options.ranks, world_options, run_rank, leave_stuck);
      return;
    }
    const auto world = comm::make_single_world(world_options);
    base::set_fault_rank(0);
    run_rank(*world);
    return;
  }
  auto world = comm::try_join_launcher(world_options);
  if (world == nullptr) world = comm::make_single_world(world_options);
  base::set_fault_rank(world->rank());
  try {
    prepare(world->size());
    run_rank(*world);
  } catch (base::Error& error) {
    if (world->size() > 1 && !error.rank()) error.on_rank(world->rank());
    world->abort(error);
    throw;
  }
}

}  // namespace expertmesh::app
