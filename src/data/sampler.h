// SPDX-License-Identifier: Apache-2.0
// Which samples a rank reads in an epoch, in upstream's order (spec 3.3): one permutation, seeded seed + epoch, cut to
// a multiple of the ranks, dealt out in turn.
#pragma once

#include <cstdint>
#include <vector>

namespace expertmesh::data {

// Samples per rank and epoch; the remainder is dropped.
int64_t samples_per_rank(int64_t num_samples, int num_ranks);

// The order of all samples in an epoch: torch's randperm, or 0..n-1.
std::vector<int64_t> epoch_permutation(int64_t num_samples, uint64_t seed, int64_t epoch, bool shuffle);

// The rank's share of that order.
std::vector<int64_t> rank_order(const std::vector<int64_t>& permutation, int num_ranks, int rank);

}  // namespace expertmesh::data
