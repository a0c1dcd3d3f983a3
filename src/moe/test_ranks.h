// SPDX-License-Identifier: Apache-2.0
// What tests of dispatchers over ranks share: all that is compared with eager, and groups of ranks with and without
// each other's memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "comm/decorators.h"
#include "comm/world.h"
#include "moe/chunk_step.h"
#include "moe/dispatcher.h"
#include "moe/test_problem.h"

namespace expertmesh::moe {

struct Candidate {
  std::string name;
  std::unique_ptr<Dispatcher> (*make)(const DispatcherOptions& options);
  DispatcherOptions options{};
  bool apart = false;  // the group says that ranks do not share memory, as with processes

  std::unique_ptr<Dispatcher> dispatcher() const { return make(options); }
  friend std::ostream& operator<<(std::ostream& out, const Candidate& candidate) { return out << candidate.name; }
};

// What domino does with many tokens.
inline std::unique_ptr<Dispatcher> make_slices(const DispatcherOptions& options) {
  return make_step_dispatcher("slices", options, [](const StepContext& context) {
    return make_chunk_step(context, {.cut = ChunkCut::kSlices, .slices = 4});
  });
}

inline std::unique_ptr<Dispatcher> make_rank_by_rank(const DispatcherOptions& options) {
  return make_step_dispatcher("rank_by_rank", options, [](const StepContext& context) {
    return make_chunk_step(context, {.cut = ChunkCut::kRanks});
  });
}

// The table, what its dispatchers do with many tokens, and what has no dedup to leave out is left out.
inline std::vector<Candidate> candidates() {
  std::vector<Candidate> result;
  for (const DispatcherInfo& row : dispatchers()) result.push_back({std::string(row.name), row.make});
  result.push_back({"slices", make_slices});
  result.push_back({"rank_by_rank", make_rank_by_rank});
  const size_t num_plain = result.size();
  for (size_t i = 0; i < num_plain; ++i) {
    Candidate apart = result[i];
    apart.name += "_apart";
    apart.apart = true;
    result.push_back(apart);
    if (result[i].name == "eager") continue;
    apart.name = result[i].name + "_no_dedup";
    apart.options.dedup = false;
    result.push_back(apart);
  }
  return result;
}

inline std::shared_ptr<comm::Group> everyone(comm::World& world, bool apart) {
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  std::shared_ptr<comm::Group> group = world.make_group("ep", {all});
  return apart ? comm::make_faulty_group(std::move(group), {}) : group;
}

// A rank's part: tokens [bounds[rank], bounds[rank + 1]) and its equal share of the experts.
inline Problem part_of(const Problem& problem, const std::vector<int64_t>& bounds, int rank) {
  const int64_t local = problem.sizes.experts / (static_cast<int64_t>(bounds.size()) - 1);
  const auto at = static_cast<size_t>(rank);
  return problem.tokens(bounds[at], bounds[at + 1]).experts(rank * local, (rank + 1) * local);
}

// Largest differences of the five, each a part of the tensor's largest value.
inline void expect_near(const Gradients& got, const Gradients& expected, double bound, const std::string& what = {}) {
  EXPECT_LT(max_difference(got.out, expected.out), bound) << what;
  EXPECT_LT(max_difference(got.hidden, expected.hidden), bound) << what;
  EXPECT_LT(max_difference(got.weights, expected.weights), bound) << what;
  EXPECT_LT(max_difference(got.gate_up_proj, expected.gate_up_proj), bound) << what;
  EXPECT_LT(max_difference(got.down_proj, expected.down_proj), bound) << what;
}

}  // namespace expertmesh::moe
