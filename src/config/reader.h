// SPDX-License-Identifier: Apache-2.0
// A Node tree read against the schema: values into Config, places into Positions, faults into Problems.
#pragma once

#include "config/load.h"
#include "config/node.h"
#include "config/problems.h"

namespace expertmesh::config {

void read_tree(Node& root, Loaded& loaded, Problems& problems);

// What to say of a key that does not exist there: the right section, the nearest name, or nothing.
struct KeyAdvice {
  std::string message;
  std::string hint;
};
KeyAdvice advise_unknown_key(std::string_view section, std::string_view key);

}  // namespace expertmesh::config
