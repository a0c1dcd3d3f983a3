// SPDX-License-Identifier: Apache-2.0
// The balance loss of routers (`router_aux_loss_coef`) as Hugging Face's load_balancing_loss_func has it, over all
// tokens of a step: E * sum_e f_e * P_e. f_e counts the choices of expert e, P_e sums its probabilities, both over the
// rows of all layers, ranks and micro-batches, divided by the number of those rows; a row is one token in one layer. f
// is a count and carries no gradient, so the gradient for a probability of expert e is E * f_e / rows, the same in each
// row. 1.0 times the choices a token is even load. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertmesh::moe {

class BalanceSums {
 public:
  explicit BalanceSums(int64_t num_experts) : values_(static_cast<size_t>(2 * num_experts + 1), 0.0) {}

  // Tokens of a layer: their choices ids_TK and all their probabilities.
  void add(std::span<const int64_t> ids, std::span<const float> probs_TE);
  // What is to be summed over ranks. fp64 holds counts to 2^53 exactly.
  std::span<double> values() { return values_; }

  double loss() const;
  // d (coefficient * loss()) / d probability of each expert, in any row.
  std::vector<float> gradient(double coefficient) const;

 private:
  size_t num_experts() const { return values_.size() / 2; }
  double rows() const { return values_.back(); }

  std::vector<double> values_;  // choices by expert, probabilities by expert, rows
};

}  // namespace expertmesh::moe
