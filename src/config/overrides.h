// SPDX-License-Identifier: Apache-2.0
// `key=value` from the command line laid over the tree of the file: dots lead into sections, the override wins, a
// mapping is merged into a mapping.
#pragma once

#include <string>
#include <vector>

#include "config/node.h"
#include "config/problems.h"

namespace expertmesh::config {

void apply_overrides(Node& root, const std::vector<std::string>& overrides, Problems& problems);

// A section given as JSON text (`dist_config: '{"name": ...}'`) becomes the mapping that it holds.
void expand_json_text(Node& section);

}  // namespace expertmesh::config
