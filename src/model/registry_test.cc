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

TEST(Registry, PublishedShapesHaveThePublishedSizes) {
  const auto model = build(preset("qwen3-moe-30b-a3b").config());
  EXPECT_EQ(model->total_parameters(), 30'532'122'624);
  EXPECT_EQ(model->active_parameters(), 3'353'032'704);
  EXPECT_FALSE(model->tied_embeddings());
  const auto newer = build(preset("qwen3.5-moe-35b-a3b").config());
  EXPECT_EQ(newer->total_parameters(), 34'660'610'688);
  EXPECT_EQ(newer->active_parameters(), 3'454'988'928);
  EXPECT_FALSE(newer->tied_embeddings());
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

TEST(Registry, NamesOfQwen3_5AreThoseOfHuggingFace) {
  const auto whole = build(preset("qwen3.5-moe-tiny").config()), text = build(preset("qwen3.5-moe-text-tiny").config());
  std::set<std::string> whole_names, text_names;
  for (const shard::Parameter* parameter : whole->parameters()) whole_names.insert(parameter->name());
  for (const shard::Parameter* parameter : text->parameters()) text_names.insert(parameter->name());
  std::set<std::string> layer_names;
  for (const char* name :
       {"linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.conv1d.weight", "linear_attn.in_proj_qkv.weight",
        "linear_attn.in_proj_z.weight", "linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight",
        "linear_attn.norm.weight", "linear_attn.out_proj.weight", "input_layernorm.weight",
        "post_attention_layernorm.weight", "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
        "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert.down_proj.weight",
        "mlp.shared_expert_gate.weight"}) {
    layer_names.insert(std::string("layers.0.") + name);
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}) {
    layer_names.insert(std::string("layers.3.self_attn.") + name + ".weight");
  }
  for (const std::string& name : layer_names) {
    EXPECT_TRUE(whole_names.contains("model.language_model." + name)) << name;
    EXPECT_TRUE(text_names.contains("model." + name)) << name;
  }
  EXPECT_TRUE(whole_names.contains("lm_head.weight"));
  EXPECT_EQ(whole_names.size(), text_names.size());
  EXPECT_TRUE(whole->weight_table().is_pass_through("model.visual.pos_embed.weight"));
  EXPECT_TRUE(whole->weight_table().is_pass_through("mtp.norm.weight"));
  EXPECT_FALSE(whole->weight_table().is_pass_through("model.language_model.norm.bias"));
  for (const shard::Parameter* parameter : whole->parameters()) {
    const bool stays = parameter->name().ends_with("A_log") || parameter->name().ends_with("dt_bias");
    EXPECT_EQ(parameter->keep_fp32(), stays) << parameter->name();
    EXPECT_EQ(whole->weight_table().entry(parameter->name()).keep_dtype, stays) << parameter->name();
    // Router, shared expert and its gate are no expert parameters.
    EXPECT_EQ(parameter->is_expert(), parameter->name().find(".experts.") != std::string::npos) << parameter->name();
  }
  EXPECT_EQ(whole->sizes().linear_attention_layers, 3);
}

TEST(Registry, AnUnknownTypeListsTheRegisteredOnes) {
  try {
    find_model_spec(Json(Json::Object{{"model_type", "qwen9_moe"}}), "config.json");
    FAIL();
  } catch (const base::Error& error) {
    for (const ModelSpec& spec : model_specs()) {
      EXPECT_NE(error.text().find(spec.model_type), std::string::npos) << error.text();
    }
  }
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
