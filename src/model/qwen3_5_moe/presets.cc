// SPDX-License-Identifier: Apache-2.0
// Models for `expertmesh init`: small ones to try things with, and the published shape. A vision tower is described, as
// the published files do, but only the text model is made. All with Qwen3.5's vocabulary but for the tiny ones, which
// need no tokenizer.
#include <array>

#include "model/qwen3_5_moe/qwen3_5_moe.h"

namespace expertmesh::model {
namespace {

using base::Json;

struct Shape {
  int64_t vocab, hidden, layers, heads, kv_heads, head_dim;
  int64_t key_heads, value_heads, linear_head_dim;
  int64_t experts, experts_per_token, moe_intermediate, shared_intermediate;
  bool tied;
  int64_t max_positions = 32768;
};

// A quarter of a head is rotated; its angles are dealt to time, height and width, time first.
Json rope_parameters(const Shape& shape) {
  const int64_t angles = shape.head_dim / 8;
  const int64_t width = angles / 3, height = (angles - width) / 2;
  return Json(Json::Object{{"mrope_interleaved", true},
                           {"mrope_section", Json::Array{angles - width - height, height, width}},
                           {"partial_rotary_factor", 0.25},
                           {"rope_theta", 10000000.0},
                           {"rope_type", "default"}});
}

Json text_config(const Shape& shape) {
  constexpr int64_t kEndOfText = 248044, kInterval = 4;
  Json::Array layer_types;
  for (int64_t i = 0; i < shape.layers; ++i) {
    layer_types.emplace_back((i + 1) % kInterval == 0 ? "full_attention" : "linear_attention");
  }
  return Json(Json::Object{
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"attn_output_gate", true},
      {"eos_token_id", shape.vocab > kEndOfText ? Json(kEndOfText) : Json(nullptr)},
      {"full_attention_interval", kInterval},
      {"head_dim", shape.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", shape.hidden},
      {"initializer_range", 0.02},
      {"layer_types", std::move(layer_types)},
      {"linear_conv_kernel_dim", 4},
      {"linear_key_head_dim", shape.linear_head_dim},
      {"linear_num_key_heads", shape.key_heads},
      {"linear_num_value_heads", shape.value_heads},
      {"linear_value_head_dim", shape.linear_head_dim},
      {"max_position_embeddings", shape.max_positions},
      {"model_type", "qwen3_5_moe_text"},
      {"moe_intermediate_size", shape.moe_intermediate},
      {"num_attention_heads", shape.heads},
      {"num_experts", shape.experts},
      {"num_experts_per_tok", shape.experts_per_token},
      {"num_hidden_layers", shape.layers},
      {"num_key_value_heads", shape.kv_heads},
      {"rms_norm_eps", 1e-6},
      {"rope_parameters", rope_parameters(shape)},
      {"router_aux_loss_coef", 0.001},
      {"shared_expert_intermediate_size", shape.shared_intermediate},
      {"tie_word_embeddings", shape.tied},
      {"vocab_size", shape.vocab},
  });
}

// The text model alone.
Json text_model(const Shape& shape) {
  Json config = text_config(shape);
  config.set("architectures", Json::Array{"Qwen3_5MoeForCausalLM"});
  return config;
}

struct VisionShape {
  int64_t depth, hidden, intermediate, heads, positions;
};

Json whole_model(const Shape& shape, const VisionShape& vision) {
  // Qwen3.5's ids of the vision markers, or the last ones of a small vocabulary.
  constexpr int64_t kVisionStart = 248053;
  const bool has_tokenizer = shape.vocab > kVisionStart + 4;
  const int64_t start = has_tokenizer ? kVisionStart : shape.vocab - 4;
  return Json(Json::Object{
      {"architectures", Json::Array{"Qwen3_5MoeForConditionalGeneration"}},
      {"image_token_id", has_tokenizer ? start + 3 : start + 2},
      {"model_type", "qwen3_5_moe"},
      {"text_config", text_config(shape)},
      {"tie_word_embeddings", shape.tied},
      {"video_token_id", has_tokenizer ? start + 4 : start + 3},
      {"vision_config", Json::Object{{"depth", vision.depth},
                                     {"hidden_act", "gelu_pytorch_tanh"},
                                     {"hidden_size", vision.hidden},
                                     {"in_channels", 3},
                                     {"initializer_range", 0.02},
                                     {"intermediate_size", vision.intermediate},
                                     {"model_type", "qwen3_5_moe_vision"},
                                     {"num_heads", vision.heads},
                                     {"num_position_embeddings", vision.positions},
                                     {"out_hidden_size", shape.hidden},
                                     {"patch_size", 16},
                                     {"spatial_merge_size", 2},
                                     {"temporal_patch_size", 2}}},
      {"vision_end_token_id", start + 1},
      {"vision_start_token_id", start},
  });
}

constexpr VisionShape kSmallVision = {1, 64, 128, 2, 64};
constexpr VisionShape kPublishedVision = {27, 1152, 4304, 16, 2304};

constexpr Shape kTiny = {.vocab = 512,
                         .hidden = 64,
                         .layers = 4,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 32,
                         .key_heads = 2,
                         .value_heads = 4,
                         .linear_head_dim = 16,
                         .experts = 8,
                         .experts_per_token = 2,
                         .moe_intermediate = 32,
                         .shared_intermediate = 32,
                         .tied = false};

constexpr Shape kQuickstart = {.vocab = 248320,
                               .hidden = 256,
                               .layers = 8,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .key_heads = 4,
                               .value_heads = 8,
                               .linear_head_dim = 32,
                               .experts = 32,
                               .experts_per_token = 4,
                               .moe_intermediate = 128,
                               .shared_intermediate = 128,
                               .tied = true};

constexpr Shape kBench = {.vocab = 248320,
                          .hidden = 512,
                          .layers = 8,
                          .heads = 8,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .key_heads = 4,
                          .value_heads = 8,
                          .linear_head_dim = 64,
                          .experts = 64,
                          .experts_per_token = 8,
                          .moe_intermediate = 128,
                          .shared_intermediate = 128,
                          .tied = true};

constexpr Shape kPublished = {.vocab = 248320,
                              .hidden = 2048,
                              .layers = 40,
                              .heads = 16,
                              .kv_heads = 2,
                              .head_dim = 256,
                              .key_heads = 16,
                              .value_heads = 32,
                              .linear_head_dim = 128,
                              .experts = 256,
                              .experts_per_token = 8,
                              .moe_intermediate = 512,
                              .shared_intermediate = 512,
                              .tied = false,
                              .max_positions = 262144};

}  // namespace

std::span<const Preset> qwen3_5_moe_presets() {
  static constexpr std::array kPresets = {
      Preset{"qwen3.5-moe-tiny", "0.4M parameters, 512 ids: for tests",
             +[] { return whole_model(kTiny, kSmallVision); }},
      Preset{"qwen3.5-moe-quickstart", "92M parameters, 70M active: to try things with",
             +[] { return whole_model(kQuickstart, kSmallVision); }},
      Preset{"qwen3.5-moe-bench", "238M parameters, 150M active: benchmarks",
             +[] { return whole_model(kBench, kSmallVision); }},
      Preset{"qwen3.5-moe-35b-a3b", "34.7B parameters, 3.5B active: the text model of Qwen3.5-35B-A3B",
             +[] { return whole_model(kPublished, kPublishedVision); }},
  };
  return kPresets;
}

std::span<const Preset> qwen3_5_moe_text_presets() {
  static constexpr std::array kPresets = {
      Preset{"qwen3.5-moe-text-tiny", "0.4M parameters, 512 ids: for tests", +[] { return text_model(kTiny); }},
  };
  return kPresets;
}

}  // namespace expertmesh::model
