// SPDX-License-Identifier: Apache-2.0
// Checks across keys that need neither a model nor the number of ranks.
#pragma once

#include "config/load.h"
#include "config/node.h"
#include "config/problems.h"

namespace expertmesh::config {

bool is_training(Command command);

// Commands that only read a model refuse keys of a training run, which would have no effect. For overrides: a file may
// well be that of the run.
void check_used_keys(const Node& root, Command command, Problems& problems);
void check_required_keys(const Loaded& loaded, Command command, Problems& problems);
void check_combinations(const Loaded& loaded, Problems& problems);
std::vector<std::string> combination_warnings(const Loaded& loaded);

}  // namespace expertmesh::config
