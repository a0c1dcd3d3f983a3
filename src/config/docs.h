// SPDX-License-Identifier: Apache-2.0
// Pages made from the schema: docs/config.md for people and the key list that a test freezes.
#pragma once

#include <string>

namespace expertmesh::config {

std::string config_page_markdown();

// One line a key: "dist_config.ep_size [fsdpturbo] integer of at least 1 = 1". Keys are an interface.
std::string config_key_list();

}  // namespace expertmesh::config
