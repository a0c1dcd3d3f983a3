// SPDX-License-Identifier: Apache-2.0
// Every dispatcher against eager under every workload, on the ranks of one world: fp32, outputs and all gradients. Used
// with rank threads and with processes.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "moe/test_ranks.h"
#include "moe/workload.h"

namespace expertmesh::moe {

struct WorkloadCase {
  WorkloadShape shape;
  int64_t hidden = 0, width = 0;
  int step = 0;

  std::string text() const {
    return fmt::format("{} experts, workload {}, step {}, {} ranks", shape.experts, static_cast<int>(shape.workload),
                       step, shape.ranks);
  }
};

// Experts, hidden and width as in Qwen3-MoE and Qwen3.5-MoE, in small; workloads that change with the step in two of
// them, the burst among them.
inline std::vector<WorkloadCase> workload_cases(int ranks, int64_t tokens) {
  std::vector<WorkloadCase> cases;
  for (const auto& [experts, width] : {std::pair<int64_t, int64_t>{24, 12}, {48, 8}}) {
    for (const WorkloadInfo& info : workloads()) {
      const bool changes = info.workload == Workload::kRotating || info.workload == Workload::kBurst;
      for (const int step : changes ? std::vector<int>{1, 3} : std::vector<int>{0}) {
        cases.push_back({.shape = {.workload = info.workload,
                                   .ranks = ranks,
                                   .tokens = tokens,
                                   .experts = experts,
                                   .top_k = 8,
                                   .seed = static_cast<uint64_t>(ranks)},
                         .hidden = 32,
                         .width = width,
                         .step = step});
      }
    }
  }
  return cases;
}

inline std::vector<int64_t> bounds_of(const WorkloadShape& shape) {
  std::vector<int64_t> bounds{0};
  for (int rank = 0; rank < shape.ranks; ++rank) bounds.push_back(bounds.back() + workload_tokens(shape, rank));
  return bounds;
}

// The layer with the tokens of all ranks, one rank's behind the other.
inline Problem problem_of(const WorkloadCase& one) {
  const int64_t num_tokens = bounds_of(one.shape).back();
  Problem problem = make_problem({num_tokens, one.hidden, one.width, one.shape.experts, one.shape.top_k}, one.step + 1);
  std::vector<int64_t> ids;
  for (int rank = 0; rank < one.shape.ranks; ++rank) {
    const std::vector<int64_t> own = workload_ids(one.shape, rank, one.step);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  problem.ids_TK = ids_tensor(ids, one.shape.top_k);
  return problem;
}

// Collective over all ranks of `world`: each compares its own part.
inline void expect_all_as_eager(comm::World& world, const std::vector<Candidate>& list, int64_t tokens) {
  const auto together = everyone(world, /*apart=*/false), apart = everyone(world, /*apart=*/true);
  const auto eager = make_dispatcher("eager");
  for (const WorkloadCase& one : workload_cases(world.size(), tokens)) {
    const Problem own = part_of(problem_of(one), bounds_of(one.shape), world.rank());
    const Gradients expected = dispatcher_gradients(own, *eager, *together);
    for (const Candidate& candidate : list) {
      const Gradients got = dispatcher_gradients(own, *candidate.dispatcher(), candidate.apart ? *apart : *together);
      expect_near(got, expected, 1e-6, candidate.name + ", " + one.text());
    }
  }
}

}  // namespace expertmesh::moe
