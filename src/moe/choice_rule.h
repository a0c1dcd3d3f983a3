// SPDX-License-Identifier: Apache-2.0
// The debug router (`debug_router` in the configuration, for tests and benchmarks): overrides which experts are chosen,
// never their weights, which stay the real probabilities at the chosen ids. No torch.
//   balanced     token t takes experts (t * K + k) mod E
//   hot:K        all choices fall on the first K experts, the most probable of them
//   none:RANK    no choice falls on an expert of that ep rank
//   rotating:K   all choices fall on K neighbouring experts, in each micro-batch of a layer on the next K
//   burst:K/N    as hot:K in every Nth micro-batch of a layer, as usual in the others
//   ...@rank     only on that global rank; the others choose as usual
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/group.h"
#include "moe/top_k.h"

namespace expertmesh::moe {

// The rule as written.
struct DebugRouter {
  enum class Kind { kBalanced, kHot, kNone, kRotating, kBurst };
  Kind kind = Kind::kBalanced;
  int64_t number = 0;         // K of hot, rotating and burst, RANK of none
  int64_t period = 0;         // N of burst
  std::optional<int> rank{};  // global
};

// Nothing for an empty text; throws kConfig for one that is no rule.
std::optional<DebugRouter> try_parse_debug_router(std::string_view text);

// The rule as it applies on one rank.
struct ChoiceRule {
  bool balanced = false;
  ExcludedExperts excluded{};
  int64_t step = 0;    // experts that `excluded` moves on from one micro-batch to the next
  int64_t period = 1;  // `excluded` counts in the last of so many micro-batches

  // What is excluded in the layer's micro-batch of this number, from 0.
  ExcludedExperts excluded_in(int64_t micro_batch, int64_t num_experts) const;
};

// Empty text: no rule. Throws kConfig where the rule does not fit the sizes: K below top_k or above the number of
// experts, none:RANK with no such ep rank or with fewer than top_k experts left.
ChoiceRule make_choice_rule(std::string_view debug_router, int64_t num_experts, int64_t top_k, const comm::Group& ep);

}  // namespace expertmesh::moe
