// SPDX-License-Identifier: Apache-2.0
// How many choices fell on each expert of one layer since the last reset. Counted when the choice is made, so never
// again by a recompute. Counts are this rank's; sum them over dp before reading ratios. No torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace expertmesh::moe {

class LoadStats {
 public:
  explicit LoadStats(int64_t num_experts) : counts_E_(static_cast<size_t>(num_experts), 0) {}

  void add(std::span<const int64_t> ids) {
    for (const int64_t id : ids) ++counts_E_.at(static_cast<size_t>(id));
  }
  void reset() { std::fill(counts_E_.begin(), counts_E_.end(), 0); }

  const std::vector<int64_t>& counts() const { return counts_E_; }

 private:
  std::vector<int64_t> counts_E_;
};

// How even the load of a layer's experts is. All 0 where nothing was counted.
struct LoadSummary {
  double max_over_mean = 0;  // of the busiest expert: 1 is balanced, E is everything on one
  int64_t dead = 0;          // experts that nothing fell on
  double entropy = 0;        // of the shares, over that of even ones: 1 is balanced, 0 is everything on one
};

inline LoadSummary summarise_load(std::span<const int64_t> counts_E) {
  const auto total = static_cast<double>(std::accumulate(counts_E.begin(), counts_E.end(), int64_t{0}));
  const auto experts = static_cast<double>(counts_E.size());
  if (total == 0) return {};
  LoadSummary summary;
  summary.max_over_mean = static_cast<double>(*std::max_element(counts_E.begin(), counts_E.end())) * experts / total;
  summary.dead = std::count(counts_E.begin(), counts_E.end(), int64_t{0});
  for (const int64_t count : counts_E) {
    const double share = static_cast<double>(count) / total;
    if (count > 0) summary.entropy -= share * std::log(share);
  }
  summary.entropy = experts > 1 ? std::clamp(summary.entropy / std::log(experts), 0.0, 1.0) : 1.0;
  return summary;
}

}  // namespace expertmesh::moe
