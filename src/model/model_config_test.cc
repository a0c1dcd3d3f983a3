// SPDX-License-Identifier: Apache-2.0
// tests/cases/weights/configs: every file is read as a model's config.json, and the outcome is the one that
// expected.json gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/qwen3_5_moe/config.h"
#include "model/qwen3_moe/config.h"
#include "model/registry.h"

namespace expertmesh::model {
namespace {

using base::Json;

const std::string kFolder = EXPERTMESH_SOURCE_DIR "/tests/cases/weights/";

Json read_json(const std::string& path) {
  return base::parse_json(base::make_posix_file_system(base::Code::kModel)->read_all(path));
}

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  const Json expected = read_json(kFolder + "expected.json");
  for (const auto& [name, entry] : *expected.try_object()) {
    if (name.starts_with("configs/")) names.push_back(name.substr(8, name.size() - 8 - 5));
  }
  return names;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// One entry of `contains`: a word, or a list of which one has to be there.
bool contains(const std::string& message, const Json& wanted) {
  if (const std::string* word = wanted.try_string()) return message.find(lower(*word)) != std::string::npos;
  return std::any_of(wanted.try_array()->begin(), wanted.try_array()->end(),
                     [&](const Json& word) { return contains(message, word); });
}

class ConfigCase : public testing::TestWithParam<std::string> {
 protected:
  std::string path() const { return kFolder + "configs/" + GetParam() + ".json"; }
  Json config() const { return read_json(path()); }
  Json outcome() const { return *read_json(kFolder + "expected.json").find("configs/" + GetParam() + ".json"); }
};

void expect_numbers(const Json& wanted, const std::vector<double>& got, double tolerance) {
  ASSERT_EQ(wanted.try_array()->size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = *(*wanted.try_array())[i].try_double();
    EXPECT_NEAR(got[i], value, tolerance * std::max(1.0, std::abs(value))) << i;
  }
}

void expect_layers(const Json& wanted, const Qwen3MoeConfig& config, bool is_moe) {
  std::vector<double> layers;
  for (size_t i = 0; i < config.is_moe_layer.size(); ++i) {
    if (config.is_moe_layer[i] == is_moe) layers.push_back(static_cast<double>(i));
  }
  expect_numbers(wanted, layers, 0.0);
}

// Every key of `ok` is known here, so that none goes unchecked.
void expect_values(const Json& ok, const Qwen3MoeConfig& config) {
  const double tolerance = ok.find("tolerance") == nullptr ? 0.0 : *ok.find("tolerance")->try_double();
  for (const auto& [key, value] : *ok.try_object()) {
    if (key == "rope_type") {
      EXPECT_EQ(rope_kind_name(config.rope.kind), *value.try_string());
    } else if (key == "rope_theta") {
      EXPECT_EQ(config.rope.theta, *value.try_double());
    } else if (key == "num_experts") {
      EXPECT_EQ(config.experts.experts, *value.try_int64());
    } else if (key == "storage_dtype") {
      EXPECT_EQ(config.storage_dtype, *value.try_string());
    } else if (key == "attention_factor") {
      EXPECT_NEAR(config.rope.attention_factor, *value.try_double(), 2 * tolerance);
    } else if (key == "inv_freq") {
      const at::Tensor frequencies = inverse_frequencies(config.rope);
      const float* data = frequencies.const_data_ptr<float>();
      expect_numbers(value, std::vector<double>(data, data + frequencies.numel()), tolerance);
    } else if (key == "moe_layers" || key == "dense_layers") {
      expect_layers(value, config, key == "moe_layers");
    } else {
      EXPECT_EQ(key, "tolerance") << "an outcome that this test does not know";
    }
  }
}

TEST_P(ConfigCase, HasTheOutcomeThatIsExpected) {
  const Json outcome = this->outcome();
  const Json json = config();
  try {
    const ModelSpec& spec = find_model_spec(json, path());
    const auto model = spec.build(json, path());
    ASSERT_NE(outcome.find("ok"), nullptr) << "accepted";
    expect_values(*outcome.find("ok"), read_qwen3_moe_config(json, path()));
    EXPECT_GT(model->total_parameters(), 0);
  } catch (const base::Error& error) {
    ASSERT_NE(outcome.find("error"), nullptr) << error.text();
    EXPECT_EQ(static_cast<int64_t>(error.code()), *outcome.find("error")->find("exit")->try_int64());
    const Json::Array& wanted = *outcome.find("error")->find("contains")->try_array();
    EXPECT_TRUE(contains(lower(error.text()), wanted.front())) << error.text();
    // The path is cut out before the other words are looked for.
    const std::string message = lower(error.message() + " " + error.hint());
    for (size_t i = 1; i < wanted.size(); ++i) {
      EXPECT_TRUE(contains(message, wanted[i])) << message << "\nwanted: " << base::dump_json(wanted[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ConfigCase, testing::ValuesIn(config_names()),
                         [](const auto& instance) { return instance.param; });

// --- beyond the cases: one sound file, one key changed ---

Json sound() { return read_json(kFolder + "configs/ok_dense_and_moe.json"); }

std::string refusal(const Json& config) {
  try {
    read_qwen3_moe_config(config, "config.json");
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kModel);
    EXPECT_EQ(error.where(), "config.json");
    return error.text();
  }
  return "accepted";
}

std::string refusal(std::string_view key, Json value) {
  Json config = sound();
  config.set(key, std::move(value));
  return refusal(config);
}

TEST(Qwen3MoeConfig, EverySizeIsChecked) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "intermediate_size", "head_dim", "decoder_sparse_step", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-4), Json(2.5), Json("16"), Json(true), Json(int64_t{1} << 40),
                              Json(uint64_t{1} << 63), Json(Json::Array{})}) {
      EXPECT_NE(refusal(key, value).find(key), std::string::npos) << key << " " << base::dump_json(value);
    }
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts",
        "num_experts_per_tok", "moe_intermediate_size", "intermediate_size"}) {
    EXPECT_NE(refusal(key, Json(nullptr)).find(std::string(key) + " is missing"), std::string::npos) << key;
  }
}

TEST(Qwen3MoeConfig, WhatIsNotBuiltIsRefusedByName) {
  EXPECT_NE(refusal("use_sliding_window", true).find("use_sliding_window"), std::string::npos);
  EXPECT_EQ(refusal("use_sliding_window", false), "accepted");
  EXPECT_NE(refusal("attention_dropout", 0.1).find("attention_dropout"), std::string::npos);
  EXPECT_NE(refusal("quantization_config", Json::Object{{"bits", 4}}).find("quantization_config"), std::string::npos);
  EXPECT_NE(refusal("partial_rotary_factor", 0.5).find("partial_rotary_factor"), std::string::npos);
  EXPECT_NE(refusal("mlp_only_layers", Json::Array{4}).find("mlp_only_layers"), std::string::npos);
  EXPECT_NE(refusal("rms_norm_eps", 0.0).find("rms_norm_eps"), std::string::npos);
  EXPECT_NE(refusal("rms_norm_eps", "x").find("rms_norm_eps"), std::string::npos);
  EXPECT_NE(refusal("norm_topk_prob", 1).find("norm_topk_prob"), std::string::npos);
  EXPECT_NE(refusal("head_dim", 5).find("head_dim"), std::string::npos);
  EXPECT_NE(refusal("num_local_experts", 8).find("num_local_experts"), std::string::npos);
  EXPECT_EQ(refusal("num_local_experts", 4), "accepted");
}

TEST(Qwen3MoeConfig, RotaryScalingIsCheckedInBothKeys) {
  const auto yarn = [](Json factor) {
    return Json(Json::Object{{"type", "yarn"}, {"factor", std::move(factor)}, {"rope_theta", 5000.0}});
  };
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    EXPECT_EQ(refusal(key, yarn(4.0)), "accepted");
    EXPECT_NE(refusal(key, yarn("x")).find(std::string(key) + ".factor"), std::string::npos);
    EXPECT_NE(refusal(key, yarn(-1)).find(std::string(key) + ".factor"), std::string::npos);
    EXPECT_NE(refusal(key, Json::Object{{"type", "linear"}}).find("factor"), std::string::npos);
    EXPECT_NE(refusal(key, Json::Object{{"type", "yarn"}, {"rope_type", "linear"}}).find("rope_type"),
              std::string::npos);
    EXPECT_NE(refusal(key, Json(3)).find(key), std::string::npos);
    EXPECT_EQ(refusal(key, Json(Json::Object{})), "accepted");
  }
  Json both = sound();
  both.set("rope_scaling", yarn(4.0));
  both.set("rope_parameters", yarn(2.0));
  EXPECT_NE(refusal(both).find("rope_parameters"), std::string::npos);
}

TEST(Qwen3MoeConfig, YarnReadsEveryOption) {
  Json config = sound();
  config.set("max_position_embeddings", 128);
  config.set("rope_scaling", Json::Object{{"rope_type", "yarn"},
                                          {"original_max_position_embeddings", 32},
                                          {"beta_fast", 16.0},
                                          {"beta_slow", 2},
                                          {"truncate", false},
                                          {"mscale", 0.7},
                                          {"mscale_all_dim", 0.5}});
  const RopeConfig rope = read_qwen3_moe_config(config, "config.json").rope;
  EXPECT_EQ(rope.factor, 4.0);  // 128 / 32
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_NEAR(rope.attention_factor, (0.07 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0), 1e-12);
  config.set("rope_scaling", Json::Object{{"rope_type", "yarn"}, {"factor", 8.0}, {"attention_factor", 1.5}});
  EXPECT_EQ(read_qwen3_moe_config(config, "config.json").rope.attention_factor, 1.5);
  EXPECT_EQ(read_qwen3_moe_config(config, "config.json").rope.original_length, 128);
}

// --- the same of Qwen3.5-MoE ---

Json sound_qwen3_5() { return read_json(kFolder + "models/nano_qwen3_5/config.json"); }

std::string qwen3_5_refusal(const Json& config) {
  try {
    read_qwen3_5_moe_config(config, "config.json");
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kModel);
    EXPECT_EQ(error.where(), "config.json");
    return error.text();
  }
  return "accepted";
}

// A key of the text model changed.
std::string text_refusal(std::string_view key, Json value) {
  Json config = sound_qwen3_5();
  Json text = *config.find("text_config");
  text.set(key, std::move(value));
  config.set("text_config", text);
  return qwen3_5_refusal(config);
}

std::string rope_refusal(std::string_view key, Json value) {
  Json rope = *sound_qwen3_5().find("text_config")->find("rope_parameters");
  rope.set(key, std::move(value));
  return text_refusal("rope_parameters", rope);
}

TEST(Qwen3_5MoeConfig, ReadsTheTextModelOfAWholeOne) {
  const Qwen3_5MoeConfig config = read_qwen3_5_moe_config(sound_qwen3_5(), "config.json");
  EXPECT_EQ(config.prefix, "model.language_model");
  EXPECT_EQ(config.is_full_attention, (std::vector<bool>{false, true}));
  EXPECT_EQ(config.delta.key_heads, 1);
  EXPECT_EQ(config.delta.value_heads, 2);
  EXPECT_EQ(config.rope.dim, 4);  // half of the 8 elements of a head
  EXPECT_EQ(config.rope.theta, 1e7);
  EXPECT_EQ(config.mrope_section, (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(config.shared_intermediate, 4);
}

TEST(Qwen3_5MoeConfig, ATextModelAloneHasOtherNames) {
  const Json text = *sound_qwen3_5().find("text_config");
  const Qwen3_5MoeConfig config = read_qwen3_5_moe_config(text, "config.json");
  EXPECT_EQ(config.prefix, "model");
  EXPECT_EQ(config.experts.experts, 4);
}

TEST(Qwen3_5MoeConfig, LayersFollowFromAnIntervalWhereTheyAreNotListed) {
  Json text = *sound_qwen3_5().find("text_config");
  text.set("layer_types", nullptr);
  text.set("num_hidden_layers", 6);
  text.set("full_attention_interval", 3);
  EXPECT_EQ(read_qwen3_5_moe_config(text, "config.json").is_full_attention,
            (std::vector<bool>{false, false, true, false, false, true}));
  text.set("full_attention_interval", nullptr);
  EXPECT_EQ(read_qwen3_5_moe_config(text, "config.json").is_full_attention,
            (std::vector<bool>{false, false, false, true, false, false}));
}

TEST(Qwen3_5MoeConfig, AQuarterOfAHeadIsRotatedWhereNothingIsSaid) {
  Json text = *sound_qwen3_5().find("text_config");
  text.set("rope_parameters", nullptr);
  EXPECT_EQ(read_qwen3_5_moe_config(text, "config.json").rope.dim, 2);
  EXPECT_TRUE(read_qwen3_5_moe_config(text, "config.json").mrope_section.empty());
}

TEST(Qwen3_5MoeConfig, EverySizeIsCheckedAndNamedWithItsPlace) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts",
        "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "head_dim",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"}) {
    for (const Json& value : {Json(0), Json(-4), Json(2.5), Json("16"), Json(true), Json(int64_t{1} << 40)}) {
      EXPECT_NE(text_refusal(key, value).find(std::string("text_config.") + key), std::string::npos) << key;
    }
    EXPECT_NE(text_refusal(key, Json(nullptr)).find(std::string(key) + " is missing"), std::string::npos) << key;
  }
}

TEST(Qwen3_5MoeConfig, WhatIsNotBuiltIsRefusedByName) {
  EXPECT_EQ(text_refusal("attn_output_gate", true), "accepted");
  EXPECT_NE(text_refusal("attn_output_gate", false).find("attn_output_gate"), std::string::npos);
  EXPECT_NE(text_refusal("norm_topk_prob", false).find("norm_topk_prob"), std::string::npos);
  EXPECT_EQ(text_refusal("mlp_only_layers", Json(Json::Array{})), "accepted");
  EXPECT_NE(text_refusal("mlp_only_layers", Json::Array{0}).find("mlp_only_layers"), std::string::npos);
  EXPECT_NE(text_refusal("decoder_sparse_step", 2).find("decoder_sparse_step"), std::string::npos);
  EXPECT_NE(text_refusal("mamba_ssm_dtype", "bfloat16").find("mamba_ssm_dtype"), std::string::npos);
  EXPECT_NE(text_refusal("hidden_act", "gelu").find("hidden_act"), std::string::npos);
  EXPECT_NE(text_refusal("attention_dropout", 0.1).find("attention_dropout"), std::string::npos);
  EXPECT_NE(text_refusal("layer_types", 3).find("layer_types"), std::string::npos);
  EXPECT_NE(text_refusal("model_type", "qwen3_5_text").find("text_config.model_type"), std::string::npos);
  EXPECT_NE(text_refusal("tie_word_embeddings", true).find("tie_word_embeddings"), std::string::npos);
  Json config = sound_qwen3_5();
  config.set("quantization_config", Json::Object{{"bits", 4}});
  EXPECT_NE(qwen3_5_refusal(config).find("quantization_config"), std::string::npos);
  config = sound_qwen3_5();
  config.set("text_config", nullptr);
  EXPECT_NE(qwen3_5_refusal(config).find("text_config is missing"), std::string::npos);
}

TEST(Qwen3_5MoeConfig, RotaryNumbersHaveToFitTheHeads) {
  EXPECT_EQ(rope_refusal("partial_rotary_factor", 1.0).find("accepted"), std::string::npos);  // sections stay at 2
  for (const Json& factor : {Json(0.0), Json(-0.5), Json(1.5), Json(0.1), Json(0.375), Json("half")}) {
    EXPECT_NE(rope_refusal("partial_rotary_factor", factor).find("partial_rotary_factor"), std::string::npos);
  }
  EXPECT_NE(rope_refusal("mrope_section", Json::Array{1, 1}).find("mrope_section"), std::string::npos);
  EXPECT_NE(rope_refusal("mrope_section", Json::Array{2, 1, -1}).find("mrope_section"), std::string::npos);
  EXPECT_NE(rope_refusal("mrope_section", "x").find("mrope_section"), std::string::npos);
  EXPECT_NE(rope_refusal("mrope_interleaved", false).find("mrope_interleaved"), std::string::npos);
  EXPECT_NE(rope_refusal("rope_type", "spiral").find("text_config.rope_parameters.rope_type"), std::string::npos);
}

}  // namespace
}  // namespace expertmesh::model
