// SPDX-License-Identifier: Apache-2.0
#include "app/launch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "app/error_report.h"
#include "base/error.h"
#include "base/fault.h"
#include "comm/launcher.h"
#include "ops/rank_memory.h"
#include "ops/rank_thread.h"

namespace expertmesh::app {
namespace {

constexpr int kMaxRanks = 256;
constexpr int kMaxThreads = 1024;

// A sanitizer watches the blocks of malloc alone.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasArenas = false;
#else
constexpr bool kHasArenas = true;
#endif

void check_ranks(int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks) return;
  throw base::make_error(base::Code::kUsage, "app/ranks", "--ranks {} is not from 1 to {}", ranks, kMaxRanks)
      .hint("A rank is a thread of this program; use as many as there are cores, or a launcher for more machines.");
}

// Under a launcher every process would start rank threads of its own and run the whole job again.
void refuse_two_starts(int ranks) {
  std::string found;
  try {
    const auto launch = comm::find_launch([](const char* name) { return std::getenv(name); });
    if (!launch || launch->size == 1) return;
    found = fmt::format("{} started this as rank {} of {}", launch->launcher, launch->rank, launch->size);
  } catch (const base::Error& error) {
    found = error.message();
  }
  throw base::make_error(base::Code::kUsage, "app/ranks", "--ranks {} was given, but {}", ranks, found)
      .hint("Leave --ranks out to be one of the launcher's ranks, or unset the launcher's variables.");
}

// A thread that is stuck after an abort cannot be ended: say why the run ends and leave without destructors.
[[noreturn]] void leave_stuck(const base::Error& cause) {
  const int code = report_error(cause);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int threads_per_rank(const LaunchOptions& options, int ranks_on_this_host) {
  if (options.threads_per_rank) return *options.threads_per_rank;
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks_on_this_host));
}

void launch(const LaunchOptions& options, const std::function<void(int)>& prepare,
            const std::function<void(comm::World&)>& body) {
  if (options.threads_per_rank && (*options.threads_per_rank < 1 || *options.threads_per_rank > kMaxThreads)) {
    throw base::make_error(base::Code::kUsage, "app/threads", "--threads-per-rank {} is not from 1 to {}",
                           *options.threads_per_rank, kMaxThreads)
        .hint("Leave it out for cores / ranks.");
  }
  comm::WorldOptions world_options{.timeout = options.timeout};
  // Whoever wants short waits wants them at the start as well.
  world_options.setup_timeout = std::min<std::chrono::milliseconds>(world_options.setup_timeout, options.timeout);
  const auto run_rank = [&](comm::World& world) {
    ops::begin_rank_thread(threads_per_rank(options, world.local_size()));
    std::optional<ops::RankMemory> memory;
    if (kHasArenas) memory.emplace();
    body(world);
  };
  if (options.ranks) {
    check_ranks(*options.ranks);
    refuse_two_starts(*options.ranks);
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
  if (world == nullptr || world->size() == 1) {
    if (world == nullptr) world = comm::make_single_world(world_options);
    base::set_fault_rank(0);
    prepare(1);
    run_rank(*world);
    return;
  }
  comm::run_rank(*world, world_options, [&](comm::World& joined) {
    prepare(joined.size());
    run_rank(joined);
  });
}

}  // namespace expertmesh::app
