// SPDX-License-Identifier: Apache-2.0
// Qwen3.5-MoE: the model, its names in a checkpoint, and the presets of `expertmesh init`.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/json.h"
#include "model/model.h"
#include "model/qwen3_5_moe/config.h"
#include "model/registry.h"

namespace expertmesh::model {

// Shapes only. `qwen3_5_moe` (the text model inside the one with a vision tower) and `qwen3_5_moe_text` alike.
std::unique_ptr<Model> build_qwen3_5_moe(const base::Json& config, const std::string& where);

std::span<const Preset> qwen3_5_moe_presets();
std::span<const Preset> qwen3_5_moe_text_presets();

}  // namespace expertmesh::model
