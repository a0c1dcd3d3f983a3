// SPDX-License-Identifier: Apache-2.0
// A partition of the ranks into groups: the argument of World::make_group.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace expertmesh::comm {

struct OwnGroup {
  size_t index = 0;  // which group of the partition
  int rank = 0;      // the group rank in it
};

// Where `rank` is; a programmer error where `groups` is not a partition of 0 .. size - 1.
OwnGroup find_own_group(const std::vector<std::vector<int>>& groups, int size, int rank, std::string_view name);

// Equal for equal partitions and names.
uint64_t partition_hash(const std::vector<std::vector<int>>& groups, std::string_view name);

}  // namespace expertmesh::comm
