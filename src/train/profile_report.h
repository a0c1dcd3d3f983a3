// SPDX-License-Identifier: Apache-2.0
// What the ranks' traces say of a run, as one table: where a step's time goes by operator, what was on its way between
// the ranks and how long they waited for it, and how far the ranks are apart.
// Format: docs/profiling.md.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/trace.h"
#include "train/roofline.h"

namespace expertmesh::train {

// Names of spans that the report knows.
inline constexpr std::string_view kStepSpan = "step";

// One rank's sums, as they travel to rank 0.
struct RankProfile {
  struct Row {
    std::string name;
    base::Trace::Sum sum;
  };
  int rank = 0;
  std::string place;  // "dp 1, ep 0"
  Roofline roofline;
  int64_t events = 0, dropped = 0;
  int64_t tensor_bytes = 0, arena_bytes = 0;  // large tensors at a time, at most; what their arena holds
  std::vector<Row> rows;
  std::array<base::Trace::LaneSum, base::kNumLanes> lanes{};

  base::Trace::Sum step() const;  // all steps
  int64_t steps() const { return step().calls; }
  int64_t step_ns() const { return step().total_ns; }
  int64_t waited_ns() const;
};

RankProfile make_rank_profile(const base::Trace& trace, int rank, std::string place, const Roofline& roofline);

base::Json to_json(const RankProfile& profile);
RankProfile rank_profile_from_json(const base::Json& json);

// A line of the table: means over the ranks and steps.
struct ProfileRow {
  std::string name;
  double calls = 0;                         // a step
  double ms = 0;                            // a step, without what stands in other rows
  double share = 0;                         // of the step
  double flops_per_s = 0, bytes_per_s = 0;  // of a rank; 0: not known
  double of_roofline = 0;                   // the time that the roofline allows, over the time it took; 0: not known
};

struct ProfileReport {
  bool bf16 = true;
  std::vector<RankProfile> ranks;
  std::vector<ProfileRow> rows;  // the longest first; their ms add up to step_ms
  double step_ms = 0;
  double imbalance = 1;  // of the time ranks did not wait: the longest over the mean

  // Without a step there are no rows.
  static ProfileReport of(std::vector<RankProfile> ranks, bool bf16);
  std::string to_text() const;
  base::Json to_json() const;
};

}  // namespace expertmesh::train
