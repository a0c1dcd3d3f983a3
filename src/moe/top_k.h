// SPDX-License-Identifier: Apache-2.0
// The choice of experts: the K most probable ones of each token, most probable first. Equal probabilities go to the
// lower expert id, which at::topk does not promise. No torch.
#pragma once

#include <cstdint>
#include <span>

namespace expertmesh::moe {

// Experts that may be chosen: all but [begin, end), on the ring of all experts: end may pass their number.
struct ExcludedExperts {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool contains(int64_t expert, int64_t num_experts) const {
    const int64_t from_begin = expert < begin ? expert + num_experts : expert;
    return from_begin < end;
  }
};

// probs [T, E] -> ids [T, K]. At least K experts must be left by `excluded`. A NaN never wins over a number, and the
// ids are valid and distinct even for a token that has only NaN.
void select_top_k(std::span<const float> probs_TE, int64_t num_experts, int64_t top_k, ExcludedExperts excluded,
                  std::span<int64_t> ids_TK);

// Token t takes experts (t * K + k) mod E: every expert gets the same load within one.
void select_balanced(int64_t num_experts, int64_t top_k, std::span<int64_t> ids_TK);

}  // namespace expertmesh::moe
