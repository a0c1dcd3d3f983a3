// SPDX-License-Identifier: Apache-2.0
// The debug router (`debug_router` in the configuration, for tests and benchmarks): overrides which experts are chosen,
// never their weights, which stay the real probabilities at the chosen ids. No torch.
//   balanced     token t takes experts (t * K + k) mod E
//   hot:K        all choices fall on the first K experts, the most probable of them
//   none:RANK    no choice falls on an expert of that ep rank
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
  enum class Kind { kBalanced, kHot, kNone };
  Kind kind = Kind::kBalanced;
  int64_t number = 0;         // K of hot, RANK of none
  std::optional<int> rank{};  // global
};

// Nothing for an empty text; throws kConfig for one that is no rule.
std::optional<DebugRouter> try_parse_debug_router(std::string_view text);

// The rule as it applies on one rank.
struct ChoiceRule {
  bool balanced = false;
  ExcludedExperts excluded{};
};

// Empty text: no rule. Throws kConfig where the rule does not fit the sizes: hot:K with K below top_k or above the
// number of experts, none:RANK with no such ep rank or with fewer than top_k experts left.
ChoiceRule make_choice_rule(std::string_view debug_router, int64_t num_experts, int64_t top_k, const comm::Group& ep);

}  // namespace expertmesh::moe
