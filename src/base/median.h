// SPDX-License-Identifier: Apache-2.0
// The middle one of measured values: what a slow minute of the machine moves least.
#pragma once

#include <algorithm>
#include <vector>

namespace expertmesh::base {

// Of an even number of values the larger of the two in the middle; there is at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace expertmesh::base
