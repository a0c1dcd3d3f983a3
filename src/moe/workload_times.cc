// SPDX-License-Identifier: Apache-2.0
#include "moe/workload_times.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/decorators.h"

namespace expertmesh::moe {
namespace {

// What one rank does in one round, and how the rows lie on the ranks.
struct Traffic {
  std::vector<int64_t> ids;
  int64_t most_rows = 0, all_rows = 0;  // of the busiest rank, of all ranks
};

Traffic traffic_of(const WorkloadShape& workload, int round, comm::Group& ep) {
  Traffic traffic{.ids = workload_ids(workload, ep.rank(), round)};
  std::vector<int64_t> rows(static_cast<size_t>(workload.ranks), 0);
  for (const int64_t expert : traffic.ids) ++rows[static_cast<size_t>(expert * workload.ranks / workload.experts)];
  ep.all_reduce({{.data = rows.data(), .count = workload.ranks, .dtype = base::DType::kI64}}, comm::ReduceOp::kSum,
                "rows of a workload");
  traffic.most_rows = *std::max_element(rows.begin(), rows.end());
  traffic.all_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  return traffic;
}

// One contender's steps.
class Lane {
 public:
  explicit Lane(const Contender& contender) : dispatcher_(make_dispatcher(contender.name, contender.options)) {}

  // balanced nullptr: `traffic` is balanced itself.
  void run_round(const SampleLayer& layer, const Traffic& traffic, const Traffic* balanced, comm::Group& ep,
                 comm::Group& all, comm::Group* free_ep) {
    if (free_ep != nullptr) times_.free.push_back(layer.timed_step(*dispatcher_, *free_ep, all, traffic.ids));
    double implied = 0;
    if (balanced != nullptr) {
      implied = layer.timed_step(*dispatcher_, ep, all, balanced->ids) * static_cast<double>(traffic.most_rows) /
                static_cast<double>(balanced->most_rows);
    }
    const TokenTraffic before = dispatcher_->traffic();
    int64_t sent = 0;
    const auto counted = comm::make_counting_group({std::shared_ptr<void>(), &ep}, sent);
    const double seconds =
        layer.timed_step(*dispatcher_, *counted, all, traffic.ids, &times_.forward, &times_.backward);
    const TokenTraffic after = dispatcher_->traffic();
    times_.seconds.push_back(seconds);
    times_.implied.push_back(balanced != nullptr ? implied : seconds);
    times_.sent_bytes += static_cast<double>(sent);
    times_.saved_bytes += static_cast<double>(after.bytes_by_choice - after.bytes) -
                          static_cast<double>(before.bytes_by_choice - before.bytes);
  }

  // What was measured to warm up.
  void forget() { times_ = {}; }

  ContenderTimes mean_times(comm::Group& all) const {
    ContenderTimes times = times_;
    const double steps = static_cast<double>(times.seconds.size()) * all.size();
    const auto take_mean = [&](double& sum) {
      sum = all.all_reduce_double(sum, comm::ReduceOp::kSum, "mean of ranks") / steps;
    };
    for (StageSeconds* stages : {&times.forward, &times.backward}) {
      for (double& seconds : *stages) take_mean(seconds);
    }
    take_mean(times.sent_bytes);
    take_mean(times.saved_bytes);
    return times;
  }

 private:
  std::unique_ptr<Dispatcher> dispatcher_;
  ContenderTimes times_;  // sums, but for the lists
};

}  // namespace

WorkloadTimes time_workload(const WorkloadShape& workload, LayerShape layer, const std::vector<Contender>& contenders,
                            int rounds, comm::Group& ep, comm::Group& all, comm::Group* free_ep) {
  const at::AutoGradMode with_graph(true);
  layer.tokens = std::max(workload.tokens, workload_tokens(workload, ep.rank()));
  const SampleLayer sample(layer, ep);
  WorkloadShape even = workload;
  even.workload = Workload::kBalanced;
  std::vector<Lane> lanes(contenders.begin(), contenders.end());
  WorkloadTimes result;
  for (int round = -1; round < rounds; ++round) {
    const int step = std::max(round, 0);
    const Traffic traffic = traffic_of(workload, step, ep);
    const Traffic balanced = traffic_of(even, step, ep);
    for (size_t turn = 0; turn < lanes.size(); ++turn) {
      // Who comes after whom changes, so that nobody always finds the caches that the same one left.
      Lane& lane = lanes[(turn + static_cast<size_t>(step)) % lanes.size()];
      lane.run_round(sample, traffic, workload.workload == Workload::kBalanced ? nullptr : &balanced, ep, all, free_ep);
      if (round < 0) lane.forget();
    }
    if (round < 0) continue;
    result.imbalance.push_back(static_cast<double>(traffic.most_rows) * workload.ranks /
                               static_cast<double>(traffic.all_rows));
  }
  for (const Lane& lane : lanes) result.contenders.push_back(lane.mean_times(all));
  return result;
}

}  // namespace expertmesh::moe
