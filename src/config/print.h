// SPDX-License-Identifier: Apache-2.0
// The resolved configuration as text: every key that applies, in a fixed order, readable again with an equal result.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "config/config.h"

namespace expertmesh::config {

// YAML for output_dir/config.resolved.yaml.
std::string print_yaml(const Config& config);

// The same as nested JSON objects: {"model": ..., "dist_config": {"name": ...}}.
base::Json to_json(const Config& config);

// The value of "dist_config.ep_size" as in to_json; nothing for a key that does not apply.
std::optional<base::Json> try_value(const Config& config, std::string_view key_path);

// FNV-1a over print_yaml: equal on every build and machine for equal configurations.
uint64_t config_hash(const Config& config);

}  // namespace expertmesh::config
