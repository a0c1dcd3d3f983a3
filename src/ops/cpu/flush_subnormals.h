// SPDX-License-Identifier: Apache-2.0
// For kernels whose subnormal numbers are parts of sums near 1: on many processors each costs more than a hundred
// cycles. No torch.
#pragma once

#include <xmmintrin.h>

namespace expertmesh::ops::cpu {

// As long as it lives, what this thread's vectors read or compute that is subnormal is zero.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kResultsAreZero | kOperandsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned kResultsAreZero = 0x8000, kOperandsAreZero = 0x0040;
  unsigned before_;
};

}  // namespace expertmesh::ops::cpu
