// SPDX-License-Identifier: Apache-2.0
#include "data/sample.h"

#include <array>

namespace expertmesh::data {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
constexpr std::array<std::string_view, 3> kBlockTypes = {"text", "reasoning", "tool_call"};

}  // namespace

std::string_view role_name(Role role) { return kRoles[static_cast<size_t>(role)]; }

std::optional<Role> try_role(std::string_view name) {
  for (size_t i = 0; i < kRoles.size(); ++i) {
    if (kRoles[i] == name) return static_cast<Role>(i);
  }
  return std::nullopt;
}

std::string_view block_type_name(BlockType type) { return kBlockTypes[static_cast<size_t>(type)]; }

std::optional<BlockType> try_block_type(std::string_view name) {
  for (size_t i = 0; i < kBlockTypes.size(); ++i) {
    if (kBlockTypes[i] == name) return static_cast<BlockType>(i);
  }
  return std::nullopt;
}

}  // namespace expertmesh::data
