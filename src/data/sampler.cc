// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace expertmesh::data {

int64_t samples_per_rank(int64_t num_samples, int num_ranks) {
  EXPERTMESH_CHECK(num_ranks >= 1 && num_samples >= 0, "{} samples, {} ranks", num_samples, num_ranks);
  // Upstream's ceil((n - R) / R) where R does not divide n: the same as n / R rounded down.
  return num_samples / num_ranks;
}

std::vector<int64_t> epoch_permutation(int64_t num_samples, uint64_t seed, int64_t epoch, bool shuffle) {
  if (shuffle) return base::torch_randperm(num_samples, seed + static_cast<uint64_t>(epoch));
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

std::vector<int64_t> rank_order(const std::vector<int64_t>& permutation, int num_ranks, int rank) {
  EXPERTMESH_CHECK(rank >= 0 && rank < num_ranks, "rank {} of {}", rank, num_ranks);
  const int64_t count = samples_per_rank(static_cast<int64_t>(permutation.size()), num_ranks);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) order.push_back(permutation[static_cast<size_t>(i * num_ranks + rank)]);
  return order;
}

}  // namespace expertmesh::data
