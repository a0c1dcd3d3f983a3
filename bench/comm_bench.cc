// SPDX-License-Identifier: Apache-2.0
// The threads engine against plain memory copies: comm_bench [ranks [MiB]].
// Copy and collective take turns in one run, on the same buffers and threads, so that a busy machine hurts both alike;
// medians are compared.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/median.h"
#include "comm/wait.h"
#include "comm/world.h"

namespace {

using expertmesh::base::DType;
using expertmesh::comm::Group;
using expertmesh::comm::ReduceOp;
using expertmesh::comm::World;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;

// Seconds between two barriers: the slowest rank counts.
double timed(Group& group, const std::function<void()>& work) {
  group.barrier("start");
  const auto start = Clock::now();
  work();
  group.barrier("end");
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Pair {
  double plain, ours;
};

Pair take_turns(Group& group, const std::function<void()>& plain, const std::function<void()>& ours) {
  std::vector<double> plain_times;
  std::vector<double> our_times;
  plain();
  ours();
  for (int round = 0; round < kRounds; ++round) {
    plain_times.push_back(timed(group, plain));
    our_times.push_back(timed(group, ours));
  }
  return {expertmesh::base::median(plain_times), expertmesh::base::median(our_times)};
}

void report(const World& world, const char* name, double bytes, const Pair& pair) {
  if (world.rank() != 0) return;
  fmt::print("{:<16} memcpy {:7.2f} ms ({:5.1f} GB/s)   collective {:7.2f} ms ({:5.1f} GB/s)   ratio {:.2f}\n", name,
             pair.plain * 1e3, bytes / pair.plain / 1e9, pair.ours * 1e3, bytes / pair.ours / 1e9,
             pair.ours / pair.plain);
}

void bench_large(World& world, int64_t bytes) {
  Group& group = world.all();
  const auto size = static_cast<int64_t>(world.size());
  const int64_t share = bytes / size / 4;  // elements
  const std::vector<int64_t> lens(static_cast<size_t>(size), share);
  std::vector<float> local(static_cast<size_t>(share), 1.0F);
  std::vector<float> full(static_cast<size_t>(share * size), 0.0F);
  std::vector<float> other(static_cast<size_t>(share * size), 2.0F);
  std::vector<float> sums(static_cast<size_t>(share), 0.0F);
  const auto copy_all = [&] { std::memcpy(full.data(), other.data(), full.size() * sizeof(float)); };
  const auto copied = static_cast<double>(full.size() * sizeof(float)) * static_cast<double>(size);

  report(world, "all_gather", copied, take_turns(group, copy_all, [&] {
           group.all_gather({{.local = local.data(), .full = full.data(), .lens = lens}}, "bench");
         }));
  report(world, "all_to_all", copied, take_turns(group, copy_all, [&] {
           group.all_to_all({.send = other.data(),
                             .send_counts = lens,
                             .recv = full.data(),
                             .recv_counts = lens,
                             .row_bytes = sizeof(float)},
                            "bench");
         }));
  report(world, "reduce_scatter", copied, take_turns(group, copy_all, [&] {
           group.reduce_scatter({{.full = other.data(), .local = sums.data(), .lens = lens}}, "bench");
         }));
  report(world, "all_reduce", copied, take_turns(group, copy_all, [&] {
           group.all_reduce({{.data = full.data(), .count = static_cast<int64_t>(full.size())}}, ReduceOp::kMax,
                            "bench");
         }));
}

void bench_small(World& world) {
  Group& group = world.all();
  constexpr int kCalls = 2000;
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), 2);
  const auto each = [&](const char* name, const std::function<void()>& call) {
    constexpr int kRepeats = 5;
    std::vector<double> times;
    times.reserve(kRepeats);
    for (int round = 0; round < kRepeats; ++round) {
      times.push_back(timed(group,
                            [&] {
                              for (int i = 0; i < kCalls; ++i) call();
                            }) /
                      kCalls);
    }
    if (world.rank() == 0) {
      fmt::print("{:<16} {:6.2f} us median, {:6.2f} us best\n", name, expertmesh::base::median(times) * 1e6,
                 *std::min_element(times.begin(), times.end()) * 1e6);
    }
  };
  each("barrier", [&] { group.barrier("bench"); });
  each("all_reduce 8 B", [&] { group.all_reduce_double(1.0, ReduceOp::kSum, "bench"); });
  each("exchange_counts", [&] { group.exchange_counts(counts, "bench"); });
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 64;
  if (ranks < 1 || mib < 1) {
    fmt::print(stderr, "comm_bench [ranks [MiB]]\n");
    return 2;
  }
  fmt::print("{} rank threads on {} cores, {} MiB a rank\n", ranks, expertmesh::comm::available_cores(), mib);
  expertmesh::comm::run_threads(ranks, {}, [&](World& world) {
    bench_large(world, mib << 20);
    bench_small(world);
  });
  return 0;
}
