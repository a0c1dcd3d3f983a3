// SPDX-License-Identifier: Apache-2.0
// The table of models: one row each, found by config.json's model_type. An unknown type is an error that lists the
// rows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/model.h"

namespace expertmesh::model {

struct Preset {
  std::string_view name;  // "qwen3-moe-quickstart"
  std::string_view description;
  base::Json (*config)();  // a config.json
};

struct ModelSpec {
  std::string_view model_type;      // "qwen3_moe"
  std::string_view expert_modules;  // pattern of the modules whose parameters are expert parameters
  // Shapes only. Throws kModel naming the key of config.json that is wrong.
  std::unique_ptr<Model> (*build)(const base::Json& config, const std::string& where);
  std::span<const Preset> (*presets)();
};

std::span<const ModelSpec> model_specs();

// Throws kModel with the registered types for an unknown or missing model_type.
const ModelSpec& find_model_spec(const base::Json& config, const std::string& where);

}  // namespace expertmesh::model
