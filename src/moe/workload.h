// SPDX-License-Identifier: Apache-2.0
// Kinds of routing for benchmarks and tests: how many tokens each rank has, and which experts they take in each step.
// Made from a seed, so that every rank knows what the others do. No torch, no communication.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace expertmesh::moe {

enum class Workload { kBalanced, kHotExperts, kHotRank, kSpread, kRagged, kEmptyRank, kRotating, kBurst };

struct WorkloadInfo {
  Workload workload;
  std::string_view name;
  std::string_view summary;
};

std::span<const WorkloadInfo> workloads();

struct WorkloadShape {
  Workload workload = Workload::kBalanced;
  int ranks = 1;
  int64_t tokens = 0;  // of a rank, on average
  int64_t experts = 0;
  int64_t top_k = 1;
  uint64_t seed = 1;
};

// Tokens of one rank, in every step.
int64_t workload_tokens(const WorkloadShape& shape, int rank);

// [tokens, top_k] of one rank: distinct experts a token.
std::vector<int64_t> workload_ids(const WorkloadShape& shape, int rank, int step);

// Rows that the experts of each rank get from all ranks.
std::vector<int64_t> workload_rows(const WorkloadShape& shape, int step);

}  // namespace expertmesh::moe
