// SPDX-License-Identifier: Apache-2.0
// A softmax over blocks of keys: the maximum and the sum so far are kept, and what was summed up before a block is
// scaled where the block has a larger maximum. No torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/cpu/own_vec.h"
#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Scaled scores, with -infinity where the key is later than the query; `visible` keys can be seen.
EXPERTMESH_INLINE Vec visible_scores(const float* scores, int64_t col, int64_t visible, float scale) {
  const Vec s = load(scores + col) * scale;
  if (col + kLanes <= visible) return s;
  return lane_numbers(col) < static_cast<int32_t>(visible) ? s : splat(-__builtin_inff());
}

// The largest lane, in few steps: the next row need not wait for it.
EXPERTMESH_INLINE float largest(Vec v) {
  const Vec8 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
             high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), eight = low > high ? low : high;
  const Vec4 first = __builtin_shufflevector(eight, eight, 0, 1, 2, 3),
             last = __builtin_shufflevector(eight, eight, 4, 5, 6, 7), four = first > last ? first : last;
  return std::max(std::max(four[0], four[2]), std::max(four[1], four[3]));
}

// Turns a row of scores into e^(score - max) and keeps the running maximum and sum. Returns the factor of what was
// summed up before.
EXPERTMESH_INLINE float soften_row(float* scores, int64_t cols, int64_t visible, float scale, float& running_max,
                                   float& running_sum) {
  Vec most = splat(-__builtin_inff());
  for (int64_t c = 0; c < cols; c += kLanes) most = max(visible_scores(scores, c, visible, scale), most);
  const float new_max = std::max(running_max, largest(most));
  Vec total = splat(0.0F);
  for (int64_t c = 0; c < cols; c += kLanes) {
    const Vec p = exp(visible_scores(scores, c, visible, scale) - new_max);
    total += p;
    store(scores + c, p);
  }
  const float factor = new_max == running_max ? 1.0F : std::exp(running_max - new_max);
  running_max = new_max;
  running_sum = running_sum * factor + sum(total);
  return factor;
}

}  // namespace expertmesh::ops::cpu
