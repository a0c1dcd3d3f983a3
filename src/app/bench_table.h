// SPDX-License-Identifier: Apache-2.0
// How `expertmesh bench moe` shows what it measured: a table, and the same as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "moe/workload_times.h"

namespace expertmesh::app {

struct BenchRun {
  moe::WorkloadInfo workload;
  moe::LayerShape layer;  // tokens: of a rank, on average
  int ranks = 1, ep_size = 1, threads = 1;
  std::string engine, links;               // "threads"; "free", "apart", "400 MB/s"
  double bytes_per_second = 0;             // of a link; 0: no limit
  std::vector<moe::Contender> contenders;  // the first is what the others are compared with
  moe::WorkloadTimes times;
  std::vector<moe::ContenderTime> auto_times{};  // what `auto` measured; empty: it was not asked
};

std::string bench_table(const BenchRun& run);
base::Json bench_json(const BenchRun& run);

}  // namespace expertmesh::app
