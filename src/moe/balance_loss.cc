// SPDX-License-Identifier: Apache-2.0
#include "moe/balance_loss.h"

#include <algorithm>

#include "base/check.h"

namespace expertmesh::moe {

BalanceSums::BalanceSums(int64_t num_experts, int64_t num_groups)
    : num_experts_(static_cast<size_t>(num_experts)),
      num_groups_(static_cast<size_t>(num_groups)),
      values_(num_groups_ * width(), 0.0) {}

void BalanceSums::add(size_t group, std::span<const int64_t> ids, std::span<const float> probs_TE) {
  EXPERTMESH_CHECK(probs_TE.size() % num_experts_ == 0, "{} probabilities of {} experts", probs_TE.size(),
                   num_experts_);
  const size_t rows = probs_TE.size() / num_experts_;
  EXPERTMESH_CHECK(group < num_groups_, "group {} of {}", group, num_groups_);
  const std::span<double> values = std::span(values_).subspan(group * width(), width());
  const std::span<double> choices_E = values.first(num_experts_);
  for (const int64_t id : ids) {
    const auto expert = static_cast<size_t>(id);
    EXPERTMESH_CHECK(expert < num_experts_, "expert {} of {}", id, num_experts_);
    choices_E[expert] += 1.0;
  }
  const std::span<double> sums_E = values.subspan(num_experts_, num_experts_);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t e = 0; e < num_experts_; ++e) sums_E[e] += static_cast<double>(probs_TE[row * num_experts_ + e]);
  }
  values.back() += static_cast<double>(rows);
}

BalanceSums::Group BalanceSums::group(size_t index) const {
  const std::span<const double> values = std::span(values_).subspan(index * width(), width());
  return {values.first(num_experts_), values.subspan(num_experts_, num_experts_), values.back()};
}

double BalanceSums::num_used_groups() const {
  double used = 0;
  for (size_t g = 0; g < num_groups_; ++g) used += group(g).rows > 0 ? 1.0 : 0.0;
  return std::max(1.0, used);
}

double BalanceSums::loss() const {
  double loss = 0;
  for (size_t g = 0; g < num_groups_; ++g) {
    const Group at = group(g);
    if (at.rows == 0) continue;
    double sum = 0;
    for (size_t e = 0; e < num_experts_; ++e) sum += at.choices_E[e] / at.rows * at.probs_E[e] / at.rows;
    loss += sum * static_cast<double>(num_experts_);
  }
  return loss / num_used_groups();
}

std::vector<float> BalanceSums::gradient(double coefficient) const {
  std::vector<float> gradient_GE(num_groups_ * num_experts_, 0.0F);
  const double share = coefficient * static_cast<double>(num_experts_) / num_used_groups();
  for (size_t g = 0; g < num_groups_; ++g) {
    const Group at = group(g);
    if (at.rows == 0) continue;
    const double scale = share / at.rows / at.rows;
    for (size_t e = 0; e < num_experts_; ++e)
      gradient_GE[g * num_experts_ + e] = static_cast<float>(scale * at.choices_E[e]);
  }
  return gradient_GE;
}

}  // namespace expertmesh::moe
