// SPDX-License-Identifier: Apache-2.0
#include "comm/partition.h"

#include "base/check.h"

namespace expertmesh::comm {

OwnGroup find_own_group(const std::vector<std::vector<int>>& groups, int size, int rank, std::string_view name) {
  std::vector<int> seen(static_cast<size_t>(size), 0);
  OwnGroup own;
  bool is_found = false;
  for (size_t index = 0; index < groups.size(); ++index) {
    EXPERTMESH_CHECK(!groups[index].empty(), "group {} of axis {} is empty", index, name);
    for (size_t at = 0; at < groups[index].size(); ++at) {
      const int member = groups[index][at];
      EXPERTMESH_CHECK(member >= 0 && member < size, "axis {}: rank {} of {} ranks", name, member, size);
      EXPERTMESH_CHECK(seen[static_cast<size_t>(member)]++ == 0, "axis {}: rank {} is in two groups", name, member);
      if (member == rank) {
        own = {index, static_cast<int>(at)};
        is_found = true;
      }
    }
  }
  for (int member = 0; member < size; ++member) {
    EXPERTMESH_CHECK(seen[static_cast<size_t>(member)] == 1, "axis {}: rank {} is in no group", name, member);
  }
  EXPERTMESH_CHECK(is_found, "axis {}: rank {} is in no group", name, rank);
  return own;
}

uint64_t partition_hash(const std::vector<std::vector<int>>& groups, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL; };
  for (const char c : name) add(static_cast<unsigned char>(c));
  for (const auto& group : groups) {
    add(0xffffULL + group.size());
    for (const int member : group) add(static_cast<uint64_t>(member));
  }
  return hash;
}

}  // namespace expertmesh::comm
