// SPDX-License-Identifier: Apache-2.0
#include "model/registry.h"

#include <array>

#include "base/error.h"
#include "model/common/json_fields.h"
#include "model/qwen3_5_moe/qwen3_5_moe.h"
#include "model/qwen3_moe/qwen3_moe.h"

namespace expertmesh::model {
namespace {

std::string registered_types() {
  std::string text;
  for (const ModelSpec& spec : model_specs()) text += fmt::format("{}{}", text.empty() ? "" : ", ", spec.model_type);
  return text;
}

}  // namespace

std::span<const ModelSpec> model_specs() {
  static constexpr std::array kSpecs = {
      ModelSpec{"qwen3_moe", "model.layers.{*}.mlp.experts", build_qwen3_moe, qwen3_moe_presets},
      ModelSpec{"qwen3_5_moe", "model.language_model.layers.{*}.mlp.experts", build_qwen3_5_moe, qwen3_5_moe_presets},
      ModelSpec{"qwen3_5_moe_text", "model.layers.{*}.mlp.experts", build_qwen3_5_moe, qwen3_5_moe_text_presets},
  };
  return kSpecs;
}

const ModelSpec& find_model_spec(const base::Json& config, const std::string& where) {
  const std::string type = JsonFields(config, where).text("model_type");
  for (const ModelSpec& spec : model_specs()) {
    if (spec.model_type == type) return spec;
  }
  throw base::make_error(base::Code::kModel, "model/config", "model_type \"{}\" is not registered", type)
      .at(where)
      .hint(fmt::format("This build knows {}.", registered_types()));
}

}  // namespace expertmesh::model
