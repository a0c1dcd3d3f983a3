// SPDX-License-Identifier: Apache-2.0
#include "train/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ops/rank_memory.h"

namespace expertmesh::train {
namespace {

using base::Json;
using base::Lane;
using base::SpanKind;

constexpr double kNsPerMs = 1e6;
constexpr double kMib = 1 << 20;
constexpr double kSmallestShare = 0.002;  // rows below it are shown as one

double number(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  EXPERTMESH_CHECK(found != nullptr && found->try_double(), "no number {}", key);
  return *found->try_double();
}

int64_t integer(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  EXPERTMESH_CHECK(found != nullptr && found->try_int64(), "no integer {}", key);
  return *found->try_int64();
}

const std::string& text(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  EXPERTMESH_CHECK(found != nullptr && found->try_string() != nullptr, "no text {}", key);
  return *found->try_string();
}

const Json::Array& list(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  EXPERTMESH_CHECK(found != nullptr && found->try_array() != nullptr, "no list {}", key);
  return *found->try_array();
}

double over(double value, double by) { return by > 0 ? value / by : 0; }

// The time within steps and layers that no span names.
constexpr const char* kBetween = "between operators";
constexpr const char* kRest = "other operators";

// Sums over the ranks, by name of the row.
std::map<std::string, base::Trace::Sum> merge(const std::vector<RankProfile>& ranks) {
  std::map<std::string, base::Trace::Sum> merged;
  for (const RankProfile& rank : ranks) {
    for (const RankProfile::Row& row : rank.rows) {
      const bool is_scope = row.sum.kind == SpanKind::kScope;
      base::Trace::Sum& sum = merged[is_scope ? kBetween : row.name];
      sum.kind = row.sum.kind;
      if (!is_scope) sum.calls += row.sum.calls;
      sum.self_ns += row.sum.self_ns;
      sum.flops += row.sum.flops;
      sum.bytes += row.sum.bytes;
    }
  }
  return merged;
}

Roofline mean_roofline(const std::vector<RankProfile>& ranks) {
  Roofline mean;
  const auto count = static_cast<double>(ranks.size());
  for (const RankProfile& rank : ranks) {
    mean.fp32_flops_per_s += rank.roofline.fp32_flops_per_s / count;
    mean.bf16_flops_per_s += rank.roofline.bf16_flops_per_s / count;
    mean.copy_bytes_per_s += rank.roofline.copy_bytes_per_s / count;
  }
  return mean;
}

std::string or_blank(bool is_known, const std::string& value) { return is_known ? value : ""; }

std::string row_text(const ProfileRow& row) {
  return fmt::format("{:<30} {:>9.1f} {:>11.2f} {:>6.1f}% {:>9} {:>8} {:>9}\n", row.name, row.calls, row.ms,
                     100 * row.share, or_blank(row.flops_per_s > 0, fmt::format("{:.1f}", row.flops_per_s / 1e9)),
                     or_blank(row.bytes_per_s > 0, fmt::format("{:.1f}", row.bytes_per_s / 1e9)),
                     or_blank(row.of_roofline > 0, fmt::format("{:.0f}%", 100 * row.of_roofline)));
}

// The rows that are worth a line, and one for what is left.
std::vector<ProfileRow> shown_rows(const std::vector<ProfileRow>& rows) {
  std::vector<ProfileRow> shown;
  ProfileRow rest;
  for (const ProfileRow& row : rows) {
    if (row.share >= kSmallestShare) {
      shown.push_back(row);
      continue;
    }
    rest.calls += row.calls;
    rest.ms += row.ms;
    rest.share += row.share;
  }
  if (rest.calls > 0 || rest.ms > 0) {
    rest.name = kRest;
    shown.push_back(rest);
  }
  return shown;
}

}  // namespace

base::Trace::Sum RankProfile::step() const {
  const auto found = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.name == kStepSpan; });
  return found == rows.end() ? base::Trace::Sum() : found->sum;
}

int64_t RankProfile::waited_ns() const {
  int64_t waited = 0;
  for (const base::Trace::LaneSum& lane : lanes) waited += lane.waited_ns;
  return waited;
}

RankProfile make_rank_profile(const base::Trace& trace, int rank, std::string place, const Roofline& roofline) {
  RankProfile profile{.rank = rank,
                      .place = std::move(place),
                      .roofline = roofline,
                      .events = static_cast<int64_t>(trace.events().size()),
                      .dropped = trace.dropped(),
                      .tensor_bytes = ops::rank_memory_use().peak_bytes,
                      .arena_bytes = ops::rank_memory_use().extent_bytes,
                      .rows = {},
                      .lanes = {}};
  for (const auto& [name, sum] : trace.sums()) profile.rows.push_back({std::string(name), sum});
  for (size_t lane = 0; lane < base::kNumLanes; ++lane) profile.lanes[lane] = trace.lane_sum(static_cast<Lane>(lane));
  return profile;
}

Json to_json(const RankProfile& profile) {
  Json::Array rows, lanes;
  for (const RankProfile::Row& row : profile.rows) {
    rows.emplace_back(Json::Object{{"name", row.name},
                                   {"kind", static_cast<int>(row.sum.kind)},
                                   {"calls", row.sum.calls},
                                   {"total_ns", row.sum.total_ns},
                                   {"self_ns", row.sum.self_ns},
                                   {"flops", row.sum.flops},
                                   {"bytes", row.sum.bytes}});
  }
  for (size_t lane = 0; lane < base::kNumLanes; ++lane) {
    const base::Trace::LaneSum& sum = profile.lanes[lane];
    lanes.emplace_back(Json::Object{{"name", base::kLaneNames[lane]},
                                    {"calls", sum.flights},
                                    {"bytes", sum.bytes},
                                    {"waited_ns", sum.waited_ns},
                                    {"on_its_way_ns", sum.flying_ns}});
  }
  return Json::Object{{"rank", profile.rank},
                      {"place", profile.place},
                      {"fp32_flops_per_s", profile.roofline.fp32_flops_per_s},
                      {"bf16_flops_per_s", profile.roofline.bf16_flops_per_s},
                      {"copy_bytes_per_s", profile.roofline.copy_bytes_per_s},
                      {"events", profile.events},
                      {"dropped", profile.dropped},
                      {"tensor_bytes", profile.tensor_bytes},
                      {"arena_bytes", profile.arena_bytes},
                      {"spans", std::move(rows)},
                      {"lanes", std::move(lanes)}};
}

RankProfile rank_profile_from_json(const Json& json) {
  RankProfile profile{.rank = static_cast<int>(integer(json, "rank")),
                      .place = text(json, "place"),
                      .roofline = {.fp32_flops_per_s = number(json, "fp32_flops_per_s"),
                                   .bf16_flops_per_s = number(json, "bf16_flops_per_s"),
                                   .copy_bytes_per_s = number(json, "copy_bytes_per_s")},
                      .events = integer(json, "events"),
                      .dropped = integer(json, "dropped"),
                      .tensor_bytes = integer(json, "tensor_bytes"),
                      .arena_bytes = integer(json, "arena_bytes"),
                      .rows = {},
                      .lanes = {}};
  for (const Json& row : list(json, "spans")) {
    profile.rows.push_back({text(row, "name"),
                            {.kind = static_cast<SpanKind>(integer(row, "kind")),
                             .lane = Lane::kCompute,
                             .calls = integer(row, "calls"),
                             .total_ns = integer(row, "total_ns"),
                             .self_ns = integer(row, "self_ns"),
                             .flops = number(row, "flops"),
                             .bytes = number(row, "bytes")}});
  }
  const Json::Array& lanes = list(json, "lanes");
  EXPERTMESH_CHECK(lanes.size() == base::kNumLanes, "{} lanes", lanes.size());
  for (size_t lane = 0; lane < base::kNumLanes; ++lane) {
    profile.lanes[lane] = {.flights = integer(lanes[lane], "calls"),
                           .bytes = number(lanes[lane], "bytes"),
                           .waited_ns = integer(lanes[lane], "waited_ns"),
                           .flying_ns = integer(lanes[lane], "on_its_way_ns")};
  }
  return profile;
}

ProfileReport ProfileReport::of(std::vector<RankProfile> ranks, bool bf16) {
  ProfileReport report;
  report.bf16 = bf16;
  report.ranks = std::move(ranks);
  double steps = 0, step_ns = 0, busy_ns = 0, most_busy_ns = 0;  // of all ranks
  for (const RankProfile& rank : report.ranks) {
    steps += static_cast<double>(rank.steps());
    step_ns += static_cast<double>(rank.step_ns());
    const auto busy = static_cast<double>(rank.step_ns() - rank.waited_ns());
    busy_ns += busy;
    most_busy_ns = std::max(most_busy_ns, busy);
  }
  if (steps == 0) return report;
  report.step_ms = step_ns / steps / kNsPerMs;
  report.imbalance = over(most_busy_ns * static_cast<double>(report.ranks.size()), busy_ns);
  const Roofline roofline = mean_roofline(report.ranks);
  const double flops_per_s = bf16 ? roofline.bf16_flops_per_s : roofline.fp32_flops_per_s;
  for (const auto& [name, sum] : merge(report.ranks)) {
    const auto self_ns = static_cast<double>(sum.self_ns);
    const double seconds = self_ns / 1e9;
    const double least = std::max(over(sum.flops, flops_per_s), over(sum.bytes, roofline.copy_bytes_per_s));
    report.rows.push_back({.name = name,
                           .calls = static_cast<double>(sum.calls) / steps,
                           .ms = self_ns / steps / kNsPerMs,
                           .share = over(self_ns, step_ns),
                           .flops_per_s = over(sum.flops, seconds),
                           .bytes_per_s = over(sum.bytes, seconds),
                           .of_roofline = over(least, seconds)});
  }
  std::stable_sort(report.rows.begin(), report.rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.ms > b.ms; });
  return report;
}

std::string ProfileReport::to_text() const {
  if (rows.empty()) return "profile: no step was recorded\n";
  const auto size = static_cast<double>(ranks.size());
  const auto steps = static_cast<double>(ranks.front().steps());
  std::string out = fmt::format("profile of {:.0f} steps on {} rank{}: {:.2f} ms a step\n\n", steps, ranks.size(),
                                ranks.size() == 1 ? "" : "s", step_ms);
  out += fmt::format("{:<30} {:>9} {:>11} {:>7} {:>9} {:>8} {:>9}\n", "a step of a rank", "calls", "ms", "share",
                     "GFLOP/s", "GB/s", "roofline");
  for (const ProfileRow& row : shown_rows(rows)) out += row_text(row);

  if (ranks.size() > 1) {
    out += fmt::format("\n{:<30} {:>9} {:>11} {:>11} {:>11} {:>9}\n", "between the ranks", "calls", "MiB",
                       "ms under way", "ms waited", "of step");
    for (size_t lane = 1; lane < base::kNumLanes; ++lane) {
      base::Trace::LaneSum sum;
      for (const RankProfile& rank : ranks) {
        sum.flights += rank.lanes[lane].flights;
        sum.bytes += rank.lanes[lane].bytes;
        sum.waited_ns += rank.lanes[lane].waited_ns;
        sum.flying_ns += rank.lanes[lane].flying_ns;
      }
      const double all = size * steps;
      const double waited_ms = static_cast<double>(sum.waited_ns) / all / kNsPerMs;
      out +=
          fmt::format("{:<30} {:>9.1f} {:>11.2f} {:>12.2f} {:>11.2f} {:>8.1f}%\n", base::kLaneNames[lane],
                      static_cast<double>(sum.flights) / all, sum.bytes / all / kMib,
                      static_cast<double>(sum.flying_ns) / all / kNsPerMs, waited_ms, 100 * over(waited_ms, step_ms));
    }
    out += fmt::format("\n{:<30} {:>11} {:>11} {:>11}\n", "rank", "ms a step", "ms busy", "ms waited");
    for (const RankProfile& rank : ranks) {
      const double own_steps = static_cast<double>(std::max<int64_t>(1, rank.steps())) * kNsPerMs;
      const double step = static_cast<double>(rank.step_ns()) / own_steps;
      const double waited = static_cast<double>(rank.waited_ns()) / own_steps;
      out += fmt::format("{:<30} {:>11.2f} {:>11.2f} {:>11.2f}\n", fmt::format("{} ({})", rank.rank, rank.place), step,
                         step - waited, waited);
    }
    out += fmt::format("imbalance {:.3f}: the busiest rank over the mean\n", imbalance);
  }

  const Roofline roofline = mean_roofline(ranks);
  out += fmt::format(
      "\nroofline of a rank: products {:.1f} GFLOP/s in fp32, {:.1f} in bf16; copies {:.1f} GB/s read and written\n",
      roofline.fp32_flops_per_s / 1e9, roofline.bf16_flops_per_s / 1e9, roofline.copy_bytes_per_s / 1e9);
  int64_t events = 0, dropped = 0;
  double tensor_bytes = 0, arena_bytes = 0;
  for (const RankProfile& rank : ranks) {
    events += rank.events;
    dropped += rank.dropped;
    tensor_bytes = std::max(tensor_bytes, static_cast<double>(rank.tensor_bytes));
    arena_bytes = std::max(arena_bytes, static_cast<double>(rank.arena_bytes));
  }
  out += fmt::format("memory of a rank: {:.0f} MiB of large tensors at a time, {:.0f} MiB held for them\n",
                     tensor_bytes / kMib, arena_bytes / kMib);
  out += fmt::format("trace: {} events", events);
  if (dropped > 0) {
    out += fmt::format("; {} more did not fit into {} a rank and are missing in it, not in this table", dropped,
                       base::Trace::kMaxEvents);
  }
  return out + "\n";
}

Json ProfileReport::to_json() const {
  Json::Array operators, per_rank;
  for (const ProfileRow& row : rows) {
    operators.emplace_back(Json::Object{{"name", row.name},
                                        {"calls", row.calls},
                                        {"ms", row.ms},
                                        {"share", row.share},
                                        {"flops_per_s", row.flops_per_s},
                                        {"bytes_per_s", row.bytes_per_s},
                                        {"of_roofline", row.of_roofline}});
  }
  for (const RankProfile& rank : ranks) per_rank.push_back(train::to_json(rank));
  return Json::Object{{"step_ms", step_ms},
                      {"dtype", bf16 ? "bf16" : "fp32"},
                      {"imbalance", imbalance},
                      {"operators", std::move(operators)},
                      {"ranks", std::move(per_rank)}};
}

}  // namespace expertmesh::train
