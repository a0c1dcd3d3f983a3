// SPDX-License-Identifier: Apache-2.0
#include "moe/measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/median.h"
#include "moe/dispatcher.h"

namespace expertmesh::moe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRounds = 50;

struct Candidate {
  std::unique_ptr<Dispatcher> dispatcher;
  std::vector<double> seconds{};
};

}  // namespace

std::vector<DispatcherTime> measure_dispatchers(const LayerShape& shape, comm::Group& ep, comm::Group& all,
                                                double seconds) {
  const at::AutoGradMode with_graph(true);
  SampleLayer layer(shape, ep);
  std::vector<Candidate> candidates;
  for (const DispatcherInfo& row : dispatchers()) candidates.push_back({row.make()});
  const auto start = Clock::now();
  for (int round = -1; round < kMaxRounds; ++round) {  // the first warms up
    const at::Tensor ids_TK = layer.choices(layer.next_scores_TE());
    for (Candidate& candidate : candidates) {
      all.barrier("auto");
      const auto begin = Clock::now();
      layer.step(*candidate.dispatcher, ep, ids_TK);
      const double own = std::chrono::duration<double>(Clock::now() - begin).count();
      const double slowest = all.all_reduce_double(own, comm::ReduceOp::kMax, "auto");
      if (round >= 0) candidate.seconds.push_back(slowest);
    }
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    const bool is_over = all.all_reduce_double(spent, comm::ReduceOp::kMax, "auto time") >= seconds;
    if (is_over && round >= 0) break;
  }
  std::vector<DispatcherTime> times;
  for (const Candidate& candidate : candidates) {
    times.push_back({candidate.dispatcher->name(), base::median(candidate.seconds) * 1e3});
  }
  return times;
}

std::string_view fastest(const std::vector<DispatcherTime>& times) {
  constexpr double kSame = 1.02;
  double best = times.front().milliseconds;
  for (const DispatcherTime& time : times) best = std::min(best, time.milliseconds);
  const auto chosen = std::find_if(times.begin(), times.end(),
                                   [&](const DispatcherTime& time) { return time.milliseconds <= kSame * best; });
  return chosen->name;
}

std::string times_text(const std::vector<DispatcherTime>& times) {
  std::string text;
  for (const DispatcherTime& time : times) {
    text += fmt::format("{}{} {:.2f} ms", text.empty() ? "" : ", ", time.name, time.milliseconds);
  }
  return text;
}

}  // namespace expertmesh::moe
