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
  // These wait for qwen3_5_moe: until then the type itself is refused.
  bool waits() const {
    const Json json = config();
    return *json.find("model_type")->try_string() == "qwen3_5_moe";
  }
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
    if (waits()) {
      EXPECT_NE(message.find("qwen3_5_moe"), std::string::npos) << message;
      return;
    }
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

}  // namespace
}  // namespace expertmesh::model
