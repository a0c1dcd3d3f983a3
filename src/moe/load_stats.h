// SPDX-License-Identifier: Apache-2.0
// How many choices fell on each expert of one layer since the last reset. Counted when the choice is made, so never
// again by a recompute. Counts are this rank's; sum them over dp before reading ratios. No torch.
#pragma once

#include <algorithm>
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

// Load of the busiest expert over the mean load: 1 is balanced, E is everything on one. 0 where nothing was counted.
inline double load_max_over_mean(std::span<const int64_t> counts_E) {
  const int64_t total = std::accumulate(counts_E.begin(), counts_E.end(), int64_t{0});
  if (total == 0) return 0.0;
  const int64_t most = *std::max_element(counts_E.begin(), counts_E.end());
  return static_cast<double>(most) * static_cast<double>(counts_E.size()) / static_cast<double>(total);
}

}  // namespace expertmesh::moe
