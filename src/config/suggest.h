// SPDX-License-Identifier: Apache-2.0
// The nearest known name to a misspelled one, for keys, choices, commands and flags.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::config {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, without regard to case, `-` and `_`; nothing where none is near (a wrong suggestion is
// worse).
std::optional<std::string> try_nearest(std::string_view name, std::span<const std::string> known);
std::optional<std::string> try_nearest(std::string_view name, std::span<const std::string_view> known);

// "a, b, c".
std::string join_names(std::span<const std::string> names);
std::string join_names(std::span<const std::string_view> names);

}  // namespace expertmesh::config
