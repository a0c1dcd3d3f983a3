// SPDX-License-Identifier: Apache-2.0
#include "moe/balance_loss.h"

#include "base/check.h"

namespace expertmesh::moe {

void BalanceSums::add(std::span<const int64_t> ids, std::span<const float> probs_TE) {
  const size_t experts = num_experts();
  EXPERTMESH_CHECK(probs_TE.size() % experts == 0, "{} probabilities of {} experts", probs_TE.size(), experts);
  for (const int64_t id : ids) values_.at(static_cast<size_t>(id)) += 1.0;
  double* sums_E = values_.data() + experts;
  for (size_t row = 0; row < probs_TE.size(); row += experts) {
    for (size_t e = 0; e < experts; ++e) sums_E[e] += static_cast<double>(probs_TE[row + e]);
  }
  values_.back() += static_cast<double>(probs_TE.size() / experts);
}

double BalanceSums::loss() const {
  const size_t experts = num_experts();
  if (rows() == 0) return 0.0;
  double sum = 0;
  for (size_t e = 0; e < experts; ++e) sum += values_[e] / rows() * values_[experts + e] / rows();
  return sum * static_cast<double>(experts);
}

std::vector<float> BalanceSums::gradient(double coefficient) const {
  const size_t experts = num_experts();
  std::vector<float> gradient_E(experts, 0.0F);
  if (rows() == 0) return gradient_E;
  const double scale = coefficient * static_cast<double>(experts) / rows() / rows();
  for (size_t e = 0; e < experts; ++e) gradient_E[e] = static_cast<float>(scale * values_[e]);
  return gradient_E;
}

}  // namespace expertmesh::moe
