// SPDX-License-Identifier: Apache-2.0
// Presets by the name that a flag gives.
#pragma once

#include <string>

#include "model/registry.h"

namespace expertmesh::app {

struct FoundPreset {
  const model::ModelSpec& spec;
  const model::Preset& preset;
};

// Throws kUsage with the nearest name, or all of them.
FoundPreset find_preset(const std::string& name);

}  // namespace expertmesh::app
