// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_5_moe/config.h"

#include <optional>

#include "model/common/json_fields.h"

namespace expertmesh::model {
namespace {

constexpr std::string_view kLinear = "linear_attention", kFull = "full_attention";
constexpr double kPartialRotary = 0.25;  // where a file does not say

// Every fourth layer is full attention unless the file lists the layers.
void read_layers(const JsonFields& fields, Qwen3_5MoeConfig& config) {
  config.num_layers = fields.integer("num_hidden_layers", {}, {1, kMostLayers});
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!fields.has("layer_types")) {
    const int64_t interval = fields.integer("full_attention_interval", 4);
    for (int64_t i = 0; i < config.num_layers; ++i) config.is_full_attention.push_back((i + 1) % interval == 0);
    return;
  }
  if (static_cast<int64_t>(types.size()) != config.num_layers) {
    throw fields.error("layer_types",
                       fmt::format("it lists {} layers; num_hidden_layers is {}", types.size(), config.num_layers));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != kLinear && types[i] != kFull) {
      throw fields.error("layer_types", fmt::format("layer {} is \"{}\"; the kinds that are built are {} and {}", i,
                                                    types[i], kLinear, kFull));
    }
    config.is_full_attention.push_back(types[i] == kFull);
  }
}

GatedDeltaSizes read_delta(const JsonFields& fields) {
  constexpr IntRange kTaps = {1, 64};
  GatedDeltaSizes sizes{.key_heads = fields.integer("linear_num_key_heads"),
                        .value_heads = fields.integer("linear_num_value_heads"),
                        .key_head_dim = fields.integer("linear_key_head_dim"),
                        .value_head_dim = fields.integer("linear_value_head_dim"),
                        .conv_taps = fields.integer("linear_conv_kernel_dim", 4, kTaps)};
  if (sizes.value_heads % sizes.key_heads != 0) {
    throw fields.error("linear_num_value_heads",
                       fmt::format("it has to be a multiple of linear_num_key_heads {}", sizes.key_heads));
  }
  return sizes;
}

// Keys of relatives of this model: here each has one value, and another would mean another computation.
void refuse_relatives(const JsonFields& fields) {
  if (!fields.boolean("attn_output_gate", true)) {
    throw fields.error("attn_output_gate", "full attention of this model has a gate on its output");
  }
  if (!fields.boolean("norm_topk_prob", true)) {
    throw fields.error("norm_topk_prob", "the weights of a token's experts sum to 1 in this model");
  }
  if (!fields.integers("mlp_only_layers", {0, kMostLayers}).empty()) {
    throw fields.error("mlp_only_layers", "every layer of this model has experts");
  }
  if (fields.integer("decoder_sparse_step", 1) != 1) {
    throw fields.error("decoder_sparse_step", "every layer of this model has experts");
  }
  if (const std::string dtype = fields.text("mamba_ssm_dtype", "float32"); dtype != "float32") {
    throw fields.error("mamba_ssm_dtype", "the state of linear attention is computed in float32");
  }
}

// The text model's description: the file's `text_config`, or the file itself.
struct TextSource {
  JsonFields fields;
  std::string prefix;
  bool tied = false;
};

TextSource find_text(const JsonFields& file) {
  if (file.text("model_type") == "qwen3_5_moe_text") {
    return {file, "model", file.boolean("tie_word_embeddings", false)};
  }
  TextSource text{file.object("text_config"), "model.language_model", file.boolean("tie_word_embeddings", false)};
  if (const std::string type = text.fields.text("model_type", "qwen3_5_moe_text"); type != "qwen3_5_moe_text") {
    throw text.fields.error("model_type", "the text model of qwen3_5_moe is a qwen3_5_moe_text");
  }
  if (text.fields.boolean("tie_word_embeddings", text.tied) != text.tied) {
    throw text.fields
        .error("tie_word_embeddings", fmt::format("outside of text_config it is {}, and that one counts", text.tied))
        .hint("Set both to what the checkpoint is.");
  }
  if (file.has("quantization_config")) refuse_unsupported(file);
  return text;
}

}  // namespace

Qwen3_5MoeConfig read_qwen3_5_moe_config(const base::Json& json, const std::string& where) {
  const TextSource text = find_text(JsonFields(json, where));
  const JsonFields& fields = text.fields;
  refuse_unsupported(fields);
  refuse_relatives(fields);
  Qwen3_5MoeConfig config;
  config.prefix = text.prefix;
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  read_layers(fields, config);
  fields.integer("head_dim");  // required: here it does not follow from the other sizes
  config.attention = read_attention_sizes(fields, config.hidden_size);
  config.rope = read_rope(fields, config.attention.head_dim, read_max_positions(fields), kPartialRotary);
  config.mrope_section = read_mrope_section(fields, config.rope);
  config.delta = read_delta(fields);
  config.experts = read_expert_sizes(fields);
  config.shared_intermediate = fields.integer("shared_expert_intermediate_size");
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = text.tied;
  config.storage_dtype = read_storage_dtype(fields);
  return config;
}

}  // namespace expertmesh::model
