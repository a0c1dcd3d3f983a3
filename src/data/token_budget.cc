// SPDX-License-Identifier: Apache-2.0
#include "data/token_budget.h"

#include <algorithm>

namespace expertmesh::data {

int64_t TokenBudget::cost_with(int64_t length) const {
  return is_packed_ ? sum_ + length : std::max(longest_, length) * (count_ + 1);
}

bool TokenBudget::try_take(int64_t length) {
  const int64_t cost = cost_with(length);
  is_closed_ = is_closed_ || (count_ > 0 && cost > tokens_);
  if (is_closed_) return false;
  ++count_;
  sum_ += length;
  longest_ = std::max(longest_, length);
  is_closed_ = !is_packed_ && cost >= tokens_;
  return true;
}

}  // namespace expertmesh::data
