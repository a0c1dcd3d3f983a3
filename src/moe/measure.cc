// SPDX-License-Identifier: Apache-2.0
#include "moe/measure.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/median.h"
#include "moe/dispatch_domino.h"
#include "moe/dispatch_mc2.h"
#include "moe/workload.h"

namespace expertmesh::moe {
namespace {

constexpr int kMinRounds = 3, kMaxRounds = 50;

}  // namespace

std::string Contender::label() const { return options.dedup ? std::string(name) : fmt::format("{}-no-dedup", name); }

std::vector<Contender> contenders(std::optional<bool> dedup, bool shares_memory) {
  std::vector<Contender> result;
  for (const DispatcherInfo& row : dispatchers()) {
    result.push_back({row.name, {.dedup = dedup.value_or(true) || !has_dedup(row.name, shares_memory)}});
    if (!dedup && row.name == "fused") result.push_back({row.name, {.dedup = false}});
  }
  return result;
}

std::vector<Contender> distinct(std::vector<Contender> contenders, const LayerShape& shape, bool shares_memory) {
  const bool one_slice = shape.tokens < 2 * kMinDominoSliceTokens;
  const bool one_piece = !shares_memory && shape.tokens * shape.top_k < kMinMc2PieceRows * shape.experts;
  std::erase_if(contenders, [&](const Contender& contender) {
    return (one_slice && contender.name == "domino") || (one_piece && contender.name == "mc2");
  });
  return contenders;
}

std::vector<ContenderTime> measure_dispatchers(const LayerShape& shape, const std::vector<Contender>& contenders,
                                               comm::Group& ep, comm::Group& all, double seconds) {
  using Clock = std::chrono::steady_clock;
  const at::AutoGradMode with_graph(true);
  const WorkloadShape workload{
      .ranks = ep.size(), .tokens = shape.tokens, .experts = shape.experts, .top_k = shape.top_k};
  const SampleLayer layer(shape, ep);
  std::vector<std::unique_ptr<Dispatcher>> dispatchers;
  dispatchers.reserve(contenders.size());
  for (const Contender& contender : contenders) {
    dispatchers.push_back(make_dispatcher(contender.name, contender.options));
  }
  std::vector<std::vector<double>> times(contenders.size());
  const auto start = Clock::now();
  for (int round = -1; round < kMaxRounds; ++round) {  // the first warms up
    const std::vector<int64_t> ids = workload_ids(workload, ep.rank(), round + 1);
    for (size_t i = 0; i < contenders.size(); ++i) {
      const double slowest = layer.timed_step(*dispatchers[i], ep, all, ids);
      if (round >= 0) times[i].push_back(slowest);
    }
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    const bool is_over = all.all_reduce_double(spent, comm::ReduceOp::kMax, "auto time") >= seconds;
    if (is_over && round + 1 >= kMinRounds) break;
  }
  std::vector<ContenderTime> result;
  const double first = base::median(times.front());
  for (size_t i = 0; i < contenders.size(); ++i) {
    std::vector<double> quotients = times[i];
    for (size_t round = 0; round < quotients.size(); ++round) quotients[round] /= times.front()[round];
    result.push_back({contenders[i], first * base::median(quotients) * 1e3});
  }
  return result;
}

const Contender& fastest(const std::vector<ContenderTime>& times) {
  constexpr double kSame = 1.02;
  double best = times.front().milliseconds;
  for (const ContenderTime& time : times) best = std::min(best, time.milliseconds);
  const auto chosen = std::find_if(times.begin(), times.end(),
                                   [&](const ContenderTime& time) { return time.milliseconds <= kSame * best; });
  return chosen->contender;
}

std::string times_text(const std::vector<ContenderTime>& times) {
  std::string text;
  for (const ContenderTime& time : times) {
    text += fmt::format("{}{} {:.2f} ms", text.empty() ? "" : ", ", time.contender.label(), time.milliseconds);
  }
  return text;
}

}  // namespace expertmesh::moe
