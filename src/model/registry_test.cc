// SPDX-License-Identifier: Apache-2.0
#include "model/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace expertmesh::model {
namespace {

using base::Json;

std::unique_ptr<Model> build(const Json& config) {
  return find_model_spec(config, "config.json").build(config, "config.json");
}

const Preset& preset(std::string_view name) {
  for (const ModelSpec& spec : model_specs()) {
    for (const Preset& preset : spec.presets()) {
      if (preset.name == name) return preset;
    }
  }
  throw std::runtime_error("no such preset");
}

// Everything that a registered model owes its users, for each of its presets. Nothing is allocated.
TEST(Registry, EveryPresetBuildsAConsistentModel) {
  for (const ModelSpec& spec : model_specs()) {
    for (const Preset& preset : spec.presets()) {
      SCOPED_TRACE(preset.name);
      const auto model = build(preset.config());
      EXPECT_FALSE(preset.description.empty());
      EXPECT_EQ(model->layers().size(), static_cast<size_t>(model->sizes().layers));
      std::set<std::string> names;
      for (const shard::Parameter* parameter : model->parameters()) {
        EXPECT_TRUE(names.insert(parameter->name()).second) << parameter->name();
        EXPECT_FALSE(parameter->is_materialized());
        const ckpt::WeightEntry& entry = model->weight_table().entry(parameter->name());
        EXPECT_EQ(entry.shape, parameter->global_shape());
        EXPECT_EQ(entry.expert_dim, parameter->is_expert() ? 0 : -1);
      }
      EXPECT_EQ(names.size(), model->weight_table().entries().size());
      for (shard::Module* module : model->modules()) {
        const bool has_experts = std::any_of(module->own_parameters().begin(), module->own_parameters().end(),
                                             [](const auto& parameter) { return parameter->is_expert(); });
        EXPECT_EQ(has_experts, shard::matches_pattern(module->path(), spec.expert_modules)) << module->path();
      }
    }
  }
}

TEST(Registry, ThePublishedShapeHasThePublishedSize) {
  const auto model = build(preset("qwen3-moe-30b-a3b").config());
  EXPECT_EQ(model->total_parameters(), 30'532'122'624);
  EXPECT_EQ(model->active_parameters(), 3'353'032'704);
  EXPECT_FALSE(model->tied_embeddings());
}

TEST(Registry, NamesAreThoseOfHuggingFace) {
  Json config = preset("qwen3-moe-tiny").config();
  config.set("mlp_only_layers", Json::Array{0});
  config.set("attention_bias", true);
  const auto model = build(config);
  std::set<std::string> names;
  for (const shard::Parameter* parameter : model->parameters()) names.insert(parameter->name());
  const std::set<std::string> expected = {
      "lm_head.weight",
      "model.embed_tokens.weight",
      "model.norm.weight",
      "model.layers.0.input_layernorm.weight",
      "model.layers.0.post_attention_layernorm.weight",
      "model.layers.0.mlp.gate_proj.weight",
      "model.layers.0.mlp.up_proj.weight",
      "model.layers.0.mlp.down_proj.weight",
      "model.layers.1.input_layernorm.weight",
      "model.layers.1.post_attention_layernorm.weight",
      "model.layers.1.mlp.gate.weight",
      "model.layers.1.mlp.experts.gate_up_proj",
      "model.layers.1.mlp.experts.down_proj",
  };
  for (const std::string& name : expected) EXPECT_TRUE(names.contains(name)) << name;
  for (const char* layer : {"0", "1"}) {
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_proj.bias",
                             "k_proj.bias", "v_proj.bias", "o_proj.bias", "q_norm.weight", "k_norm.weight"}) {
      const std::string full = std::string("model.layers.") + layer + ".self_attn." + name;
      EXPECT_TRUE(names.contains(full)) << full;
    }
  }
  EXPECT_EQ(names.size(), expected.size() + 20);
  EXPECT_EQ(model->layers()[0]->experts(), nullptr);
  EXPECT_EQ(model->layers()[0]->router(), nullptr);
  EXPECT_EQ(model->layers()[1]->experts()->path(), "model.layers.1.mlp.experts");
}

TEST(Registry, TiedModelsHaveOneTable) {
  const auto model = build(preset("qwen3-moe-quickstart").config());
  EXPECT_TRUE(model->tied_embeddings());
  for (const shard::Parameter* parameter : model->parameters()) EXPECT_NE(parameter->name(), "lm_head.weight");
  ASSERT_EQ(model->weight_table().aliases().size(), 1U);
  EXPECT_EQ(model->weight_table().aliases()[0].name, "lm_head.weight");
}

TEST(Registry, AMissingTypeNamesTheKey) {
  try {
    find_model_spec(Json(Json::Object{}), "config.json");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kModel);
    EXPECT_NE(error.text().find("model_type is missing"), std::string::npos);
  }
}

}  // namespace
}  // namespace expertmesh::model
