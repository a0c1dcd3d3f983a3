// SPDX-License-Identifier: Apache-2.0
#include "app/bench_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/median.h"

namespace expertmesh::app {
namespace {

// Quotients of the same rounds.
std::vector<double> ratios(const std::vector<double>& values, const std::vector<double>& to) {
  std::vector<double> result;
  for (size_t i = 0; i < values.size(); ++i) result.push_back(values[i] / to[i]);
  return result;
}

struct Row {
  std::string label;
  double seconds = 0, tokens_per_s = 0;
  double to_first = 0, to_first_least = 0, to_first_most = 0;
  double to_implied = 0;
  double hidden = 0;  // part of the time on links that the step is not longer for
};

Row row_of(const BenchRun& run, size_t index) {
  const moe::ContenderTimes& times = run.times.contenders[index];
  const std::vector<double> to_first = ratios(times.seconds, run.times.contenders.front().seconds);
  const auto [least, most] = std::minmax_element(to_first.begin(), to_first.end());
  const double seconds = base::median(times.seconds);
  std::vector<double> hidden{0};
  if (!times.free.empty()) {
    hidden.clear();
    const double on_links = times.sent_bytes / run.bytes_per_second;
    for (size_t i = 0; i < times.free.size(); ++i) hidden.push_back(1 - (times.seconds[i] - times.free[i]) / on_links);
  }
  return {.label = run.contenders[index].label(),
          .seconds = seconds,
          .tokens_per_s = static_cast<double>(run.layer.tokens * run.ranks) / seconds,
          .to_first = base::median(to_first),
          .to_first_least = *least,
          .to_first_most = *most,
          .to_implied = base::median(ratios(times.seconds, times.implied)),
          .hidden = base::median(hidden)};
}

std::vector<Row> rows_of(const BenchRun& run) {
  std::vector<Row> rows;
  for (size_t i = 0; i < run.contenders.size(); ++i) rows.push_back(row_of(run, i));
  return rows;
}

std::string_view dtype_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

double most_imbalance(const BenchRun& run) {
  return *std::max_element(run.times.imbalance.begin(), run.times.imbalance.end());
}

// The dispatcher that `auto` takes against the best of those that ran.
struct AutoChoice {
  std::string label, best;
  double to_best = 0;
};

AutoChoice auto_choice(const BenchRun& run) {
  const std::string chosen = moe::fastest(run.auto_times).label();
  const std::vector<Row> rows = rows_of(run);
  const auto best =
      std::min_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.to_first < b.to_first; });
  const auto own = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.label == chosen; });
  return {chosen, best->label, own->to_first / best->to_first};
}

base::Json stages_json(const moe::StageSeconds& seconds) {
  base::Json::Object stages;
  for (size_t stage = 0; stage < moe::kNumStages; ++stage) {
    stages.emplace_back(std::string(moe::kStageNames[stage]), seconds[stage] * 1e3);
  }
  return stages;
}

}  // namespace

std::string bench_table(const BenchRun& run) {
  std::string text = fmt::format(
      "{}: {}\n{} ranks ({}), ep {}, {} thread{} each, links {}; {} tokens a rank, hidden {}, width {}, {} experts, "
      "top-{}, {}; busiest rank {:.2f} of the mean rows\n",
      run.workload.name, run.workload.summary, run.ranks, run.engine, run.ep_size, run.threads,
      run.threads == 1 ? "" : "s", run.links, run.layer.tokens, run.layer.hidden, run.layer.width, run.layer.experts,
      run.layer.top_k, dtype_name(run.layer.dtype), most_imbalance(run));
  text += fmt::format("{:<17}{:>9}{:>9}  {:<22}{:>9}{:>9}{:>9}{:>9}  {:<42}{}\n", "dispatcher", "tokens/s", "ms",
                      "to eager", "own work", run.bytes_per_second > 0 ? "hidden" : "", "sent MB", "saved MB",
                      "forward ms: plan permute exchange experts combine", " | backward ms");
  const std::vector<Row> rows = rows_of(run);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const moe::ContenderTimes& times = run.times.contenders[i];
    text += fmt::format("{:<17}{:>9.0f}{:>9.2f}  {:<22}{:>9.2f}{:>9}{:>9.2f}{:>9.2f}", row.label, row.tokens_per_s,
                        row.seconds * 1e3,
                        fmt::format("{:.3f} ({:.3f} - {:.3f})", row.to_first, row.to_first_least, row.to_first_most),
                        row.to_implied, run.bytes_per_second > 0 ? fmt::format("{:.0f}%", 100 * row.hidden) : "",
                        times.sent_bytes / 1e6, times.saved_bytes / 1e6);
    for (const moe::StageSeconds* stages : {&times.forward, &times.backward}) {
      text += stages == &times.forward ? "  " : "  |";
      for (const double seconds : *stages) text += fmt::format(" {:>8.2f}", seconds * 1e3);
    }
    text += "\n";
  }
  if (!run.auto_times.empty()) {
    const AutoChoice choice = auto_choice(run);
    text += fmt::format("auto takes {}: {:.3f} of the best, {}; measured {}\n", choice.label, choice.to_best,
                        choice.best, moe::times_text(run.auto_times));
  }
  return text;
}

base::Json bench_json(const BenchRun& run) {
  base::Json::Array contenders;
  const std::vector<Row> rows = rows_of(run);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const moe::ContenderTimes& times = run.times.contenders[i];
    contenders.push_back(
        base::Json::Object{{"dispatcher", row.label},
                           {"tokens_per_s", row.tokens_per_s},
                           {"milliseconds", row.seconds * 1e3},
                           {"best_milliseconds", *std::min_element(times.seconds.begin(), times.seconds.end()) * 1e3},
                           {"to_eager", row.to_first},
                           {"to_eager_least", row.to_first_least},
                           {"to_eager_most", row.to_first_most},
                           {"to_own_work", row.to_implied},
                           {"hidden", times.free.empty() ? base::Json() : base::Json(row.hidden)},
                           {"sent_bytes", times.sent_bytes},
                           {"saved_bytes", times.saved_bytes},
                           {"forward_ms", stages_json(times.forward)},
                           {"backward_ms", stages_json(times.backward)}});
  }
  base::Json::Object result{{"workload", run.workload.name},
                            {"ranks", run.ranks},
                            {"ep_size", run.ep_size},
                            {"engine", run.engine},
                            {"links", run.links},
                            {"threads_per_rank", run.threads},
                            {"tokens", run.layer.tokens},
                            {"hidden", run.layer.hidden},
                            {"width", run.layer.width},
                            {"experts", run.layer.experts},
                            {"top_k", run.layer.top_k},
                            {"dtype", dtype_name(run.layer.dtype)},
                            {"rounds", static_cast<int64_t>(run.times.imbalance.size())},
                            {"imbalance", most_imbalance(run)},
                            {"dispatchers", std::move(contenders)}};
  if (!run.auto_times.empty()) {
    const AutoChoice choice = auto_choice(run);
    result.emplace_back("auto", choice.label);
    result.emplace_back("auto_to_best", choice.to_best);
  }
  return result;
}

}  // namespace expertmesh::app
