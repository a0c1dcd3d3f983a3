// SPDX-License-Identifier: Apache-2.0
// When a dynamic strategy closes a micro batch (spec 3.3). Samples come in order, each cut at cutoff_len, and are never
// passed over for one that would fit better.
//   padded  the cost is samples x the longest of them. Closes before a sample that would take it over the budget, and
//   at
//           once where it reaches the budget.
//   packed  the cost is the sum of the lengths. Closes only before a sample that would take it over the budget: a micro
//           batch that is exactly full waits for one more sample to find out.
// One sample alone always fits, as the budget is a multiple of cutoff_len.
#pragma once

#include <cstdint>

namespace expertmesh::data {

class TokenBudget {
 public:
  TokenBudget(bool is_packed, int64_t tokens) : is_packed_(is_packed), tokens_(tokens) {}

  // Takes a sample of `length` tokens; or closes without it, and it opens the next micro batch.
  bool try_take(int64_t length);
  bool is_closed() const { return is_closed_; }

 private:
  int64_t cost_with(int64_t length) const;

  bool is_packed_;
  int64_t tokens_;
  bool is_closed_ = false;
  int64_t count_ = 0, sum_ = 0, longest_ = 0;
};

}  // namespace expertmesh::data
