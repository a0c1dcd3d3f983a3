// SPDX-License-Identifier: Apache-2.0
// The gate: which experts a token goes to and with which weights. Logits, softmax and weights in fp32 whatever the
// model's dtype: a gate in bf16 picks other experts. The choice is made once per layer and micro-batch and kept in
// Routing; a later forward (the recompute) takes the probabilities again, for the gradient, at the kept ids.
// Shapes: T tokens, H hidden, E experts, K choices a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moe/balance_loss.h"
#include "moe/choice_rule.h"
#include "moe/dispatcher.h"
#include "moe/load_stats.h"
#include "shard/module.h"

namespace expertmesh::moe {

struct RouterOptions {
  int64_t hidden = 0;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool norm_topk_prob = true;  // the K weights of a token sum to 1
};

// What one forward of a layer has to do with the balance loss.
struct BalanceTerm {
  BalanceSums* sums = nullptr;  // gets what the choice adds, where one is made
  size_t group = 0;             // of sums: this layer's
  at::Tensor probs_TE;          // of a forward with a graph: where the loss's gradient enters it
};

class Router : public shard::Module {
 public:
  // One parameter, `path`.weight [E, H].
  Router(std::string path, RouterOptions options);

  // hidden_TH (any floating dtype) -> weights_TK, fp32, differentiable in hidden and the gate. Makes the choice and
  // fills routing.ids_TK where routing is undecided. `balance`: nullptr without a balance loss.
  at::Tensor forward(const at::Tensor& hidden_TH, Routing& routing, const ChoiceRule& rule = {},
                     BalanceTerm* balance = nullptr) const;

  const RouterOptions& options() const { return options_; }
  // Choices since the last reset, on this rank.
  LoadStats& load() const { return load_; }
  // How often a choice was made (not how often forward ran).
  int64_t num_decisions() const { return num_decisions_; }

 private:
  void decide(const at::Tensor& probs_TE, Routing& routing, const ChoiceRule& rule, const BalanceTerm* balance) const;

  RouterOptions options_;
  shard::Parameter& weight_;
  mutable LoadStats load_;
  mutable int64_t num_decisions_ = 0;
};

}  // namespace expertmesh::moe
