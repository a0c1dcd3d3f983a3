// SPDX-License-Identifier: Apache-2.0
// The balance loss of routers (`router_aux_loss_coef`) over all tokens of a step. Layers are counted in groups: in one
// (`moe_aux_loss: global`), as Hugging Face's load_balancing_loss_func does, or each by itself (`layer`). A group's
// loss is E * sum_e f_e * P_e. f_e counts the choices of expert e, P_e sums its probabilities, both over the rows of
// all its layers, of all ranks and micro-batches, divided by the number of those rows; a row is one token in one layer.
// The loss is the mean over the groups that have rows, G of them. f is a count and carries no gradient, so the gradient
// for a probability of expert e is E * f_e / rows / G, the same in each row of a group. 1.0 times the choices a token
// is even load. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertmesh::moe {

class BalanceSums {
 public:
  // num_groups: 1 for all layers together, or the number of layers.
  BalanceSums(int64_t num_experts, int64_t num_groups);

  size_t num_groups() const { return num_groups_; }
  size_t group_of(size_t layer) const { return num_groups_ == 1 ? 0 : layer; }

  // Tokens of a layer: their choices ids_TK and all their probabilities.
  void add(size_t group, std::span<const int64_t> ids, std::span<const float> probs_TE);
  // What is to be summed over ranks. fp64 holds counts to 2^53 exactly.
  std::span<double> values() { return values_; }

  double loss() const;
  // d (coefficient * loss()) / d probability of each expert, in any row of a group: [groups, E], zeros for a group
  // without rows.
  std::vector<float> gradient(double coefficient) const;

 private:
  // Of one group, within values_.
  struct Group {
    std::span<const double> choices_E, probs_E;
    double rows;
  };
  size_t width() const { return 2 * num_experts_ + 1; }
  Group group(size_t index) const;
  double num_used_groups() const;

  size_t num_experts_, num_groups_;
  std::vector<double> values_;  // of each group: choices by expert, probabilities by expert, rows
};

}  // namespace expertmesh::moe
