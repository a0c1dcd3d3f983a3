// SPDX-License-Identifier: Apache-2.0
// How many rows a product takes at a time. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace expertmesh::ops::cpu {

// [0, total) in as few parts of at most `most` as possible, whose sizes differ by one at most.
class EvenParts {
 public:
  EvenParts(int64_t total, int64_t most)
      : count_((total + most - 1) / most), size_(count_ ? total / count_ : 0), larger_(total - size_ * count_) {}

  int64_t count() const { return count_; }
  int64_t begin(int64_t part) const { return part * size_ + std::max<int64_t>(part - smaller(), 0); }
  int64_t size(int64_t part) const { return size_ + (part < smaller() ? 0 : 1); }

 private:
  int64_t smaller() const { return count_ - larger_; }

  int64_t count_, size_, larger_;  // the last `larger_` have one more
};

}  // namespace expertmesh::ops::cpu
