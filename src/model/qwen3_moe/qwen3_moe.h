// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE: the model, its names in a checkpoint, and the presets of `expertmesh init`.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/json.h"
#include "model/model.h"
#include "model/qwen3_moe/config.h"
#include "model/registry.h"

namespace expertmesh::model {

// Shapes only.
std::unique_ptr<Model> build_qwen3_moe(const base::Json& config, const std::string& where);

std::span<const Preset> qwen3_moe_presets();

}  // namespace expertmesh::model
