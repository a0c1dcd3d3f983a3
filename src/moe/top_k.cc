// SPDX-License-Identifier: Apache-2.0
// One pass over the experts of a token keeps a list of the best K, sorted; a later expert enters only where it is
// strictly better, so ties stay with the lower id.
#include "moe/top_k.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

namespace expertmesh::moe {
namespace {

void select_one(const float* probs_E, int64_t num_experts, int64_t top_k, ExcludedExperts excluded, float* best_K,
                int64_t* ids_K) {
  int64_t kept = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    if (excluded.contains(expert, num_experts)) continue;
    const float prob = std::isnan(probs_E[expert]) ? -std::numeric_limits<float>::infinity() : probs_E[expert];
    if (kept == top_k && !(prob > best_K[top_k - 1])) continue;
    int64_t place = kept < top_k ? kept++ : top_k - 1;
    for (; place > 0 && prob > best_K[place - 1]; --place) {
      best_K[place] = best_K[place - 1];
      ids_K[place] = ids_K[place - 1];
    }
    best_K[place] = prob;
    ids_K[place] = expert;
  }
}

}  // namespace

void select_top_k(std::span<const float> probs_TE, int64_t num_experts, int64_t top_k, ExcludedExperts excluded,
                  std::span<int64_t> ids_TK) {
  EXPERTMESH_CHECK(top_k >= 1 && num_experts - excluded.size() >= top_k, "top {} of {} experts, {} excluded", top_k,
                   num_experts, excluded.size());
  const int64_t num_tokens = static_cast<int64_t>(ids_TK.size()) / top_k;
  EXPERTMESH_CHECK(static_cast<int64_t>(probs_TE.size()) == num_tokens * num_experts, "{} probabilities, {} tokens",
                   probs_TE.size(), num_tokens);
  std::vector<float> best_K(static_cast<size_t>(top_k));
  for (int64_t token = 0; token < num_tokens; ++token) {
    select_one(probs_TE.data() + token * num_experts, num_experts, top_k, excluded, best_K.data(),
               ids_TK.data() + token * top_k);
  }
}

void select_balanced(int64_t num_experts, int64_t top_k, std::span<int64_t> ids_TK) {
  EXPERTMESH_CHECK(top_k >= 1 && top_k <= num_experts, "top {} of {} experts", top_k, num_experts);
  for (size_t choice = 0; choice < ids_TK.size(); ++choice) ids_TK[choice] = static_cast<int64_t>(choice) % num_experts;
}

}  // namespace expertmesh::moe
