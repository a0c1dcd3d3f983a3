// SPDX-License-Identifier: Apache-2.0
// `fsdp_implementation: native` against `custom`: gather and reduction of one layer's experts, per parameter and
// through one flat buffer: fsdp_bench [ranks [experts hidden width]]. The two take turns; medians are compared.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "base/median.h"
#include "comm/world.h"
#include "shard/unit.h"

namespace {

using expertmesh::comm::World;
using expertmesh::shard::BufferPool;
using expertmesh::shard::GatherMode;
using expertmesh::shard::Parameter;
using expertmesh::shard::Unit;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;

struct Times {
  std::vector<double> gather, reduce;
};

double timed(World& world, const std::function<void()>& work) {
  world.all().barrier("start");
  const auto start = Clock::now();
  work();
  world.all().barrier("end");
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One layer's experts, sharded along dim 1 as EFSDP does.
struct Experts {
  Experts(World& world, GatherMode mode, int64_t experts, int64_t hidden, int64_t width)
      : gate_up("gate_up_proj", {experts, 2 * width, hidden}), down("down_proj", {experts, hidden, width}) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    const auto group = world.make_group("efsdp", {all});
    for (Parameter* parameter : {&gate_up, &down}) {
      parameter->shard(1, group);
      parameter->materialize(at::kBFloat16);
    }
    unit = std::make_unique<Unit>("experts", std::vector<Parameter*>{&gate_up, &down}, mode, &pool);
  }

  void run(World& world, Times& times) {
    times.gather.push_back(timed(world, [&] { unit->wait(); }));
    for (Parameter* parameter : {&gate_up, &down}) {
      const_cast<at::Tensor&>(parameter->value()).mutable_grad() =
          at::zeros(parameter->unsharded_shape(), at::TensorOptions().dtype(at::kBFloat16));
    }
    times.reduce.push_back(timed(world, [&] { unit->reduce_gradients(); }));
    unit->reshard();
  }

  Parameter gate_up, down;
  BufferPool pool;
  std::unique_ptr<Unit> unit;
};

int64_t argument(int argc, char** argv, int index, int64_t otherwise) {
  return argc > index ? std::atoll(argv[index]) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const auto ranks = static_cast<int>(argument(argc, argv, 1, 2));
  const int64_t experts = argument(argc, argv, 2, 64), hidden = argument(argc, argv, 3, 512),
                width = argument(argc, argv, 4, 192);
  expertmesh::comm::run_threads(ranks, {}, [&](World& world) {
    Experts native(world, GatherMode::kPerParameter, experts, hidden, width);
    Experts custom(world, GatherMode::kFlat, experts, hidden, width);
    Times native_times, custom_times;
    for (int round = 0; round < kRounds; ++round) {
      native.run(world, native_times);
      custom.run(world, custom_times);
    }
    if (world.rank() != 0) return;
    const double mib = static_cast<double>(3 * experts * hidden * width * 2) / (1 << 20);
    fmt::print("{} ranks, {:.0f} MiB of bf16 experts\n", ranks, mib);
    for (const auto& [name, a, b] : {std::tuple{"gather", &native_times.gather, &custom_times.gather},
                                     std::tuple{"reduce", &native_times.reduce, &custom_times.reduce}}) {
      fmt::print("{:<8} native {:7.2f} ms   custom {:7.2f} ms   ratio {:.2f}\n", name,
                 1e3 * expertmesh::base::median(*a), 1e3 * expertmesh::base::median(*b),
                 expertmesh::base::median(*b) / expertmesh::base::median(*a));
    }
  });
  return 0;
}
