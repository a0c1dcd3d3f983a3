// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/config.h"

#include <algorithm>

#include "model/common/json_fields.h"

namespace expertmesh::model {
namespace {

constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostExperts = 65536;

// transformers 5 writes `num_local_experts` for the same number.
int64_t read_num_experts(const JsonFields& fields) {
  constexpr IntRange kRange = {1, kMostExperts};
  if (!fields.has("num_local_experts")) return fields.integer("num_experts", {}, kRange);
  const int64_t experts = fields.integer("num_local_experts", {}, kRange);
  if (fields.integer("num_experts", experts, kRange) != experts) {
    throw fields.error("num_experts", fmt::format("num_local_experts is {}", experts)).hint("They mean the same.");
  }
  return experts;
}

void read_attention(const JsonFields& fields, Qwen3MoeConfig& config) {
  config.num_heads = fields.integer("num_attention_heads");
  config.num_kv_heads = fields.integer("num_key_value_heads");
  if (config.num_heads % config.num_kv_heads != 0) {
    throw fields.error("num_key_value_heads", fmt::format("num_attention_heads {} is no multiple of {}",
                                                          config.num_heads, config.num_kv_heads));
  }
  if (!fields.has("head_dim") && config.hidden_size % config.num_heads != 0) {
    throw fields.error("head_dim", fmt::format("hidden_size {} does not divide by num_attention_heads {}",
                                               config.hidden_size, config.num_heads));
  }
  config.head_dim = fields.integer("head_dim", config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0) throw fields.error("head_dim", "rotary embedding needs an even number");
  config.attention_bias = fields.boolean("attention_bias", false);
  config.max_positions = fields.integer("max_position_embeddings", 32768, {1, int64_t{1} << 30});
  config.rope = read_rope(fields, config.head_dim, config.max_positions);
}

void read_experts(const JsonFields& fields, Qwen3MoeConfig& config) {
  config.num_experts = read_num_experts(fields);
  config.num_experts_per_token = fields.integer("num_experts_per_tok");
  if (config.num_experts_per_token > config.num_experts) {
    throw fields.error("num_experts_per_tok", fmt::format("there are {} experts (num_experts)", config.num_experts));
  }
  config.moe_intermediate_size = fields.integer("moe_intermediate_size");
  config.norm_topk_prob = fields.boolean("norm_topk_prob", false);
}

// Layer i has experts where (i + 1) is a multiple of decoder_sparse_step and mlp_only_layers does not list it.
void read_layers(const JsonFields& fields, Qwen3MoeConfig& config) {
  config.num_layers = fields.integer("num_hidden_layers", {}, {1, kMostLayers});
  const int64_t step = fields.integer("decoder_sparse_step", 1);
  const std::vector<int64_t> dense = fields.integers("mlp_only_layers", {0, config.num_layers - 1});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool is_listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    config.is_moe_layer.push_back(!is_listed && (layer + 1) % step == 0);
  }
  const bool has_dense =
      std::find(config.is_moe_layer.begin(), config.is_moe_layer.end(), false) != config.is_moe_layer.end();
  config.intermediate_size = fields.integer("intermediate_size", has_dense ? std::nullopt : std::optional<int64_t>(1));
}

// What would change the computation and is not built.
void refuse_unsupported(const JsonFields& fields) {
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    throw fields.error("hidden_act", "the only activation that is built is silu");
  }
  if (fields.boolean("use_sliding_window", false)) {
    throw fields.error("use_sliding_window", "sliding-window attention is not built")
        .hint("Set it to false where the model was trained with full attention.");
  }
  if (fields.number("attention_dropout", 0.0) != 0.0) {
    throw fields.error("attention_dropout", "dropout is not built").hint("Set it to 0.");
  }
  if (fields.has("quantization_config")) {
    throw fields.error("quantization_config", "quantized models are not supported")
        .hint("Use the float version of the model.");
  }
}

std::string read_storage_dtype(const JsonFields& fields) {
  const std::string dtype = fields.text("dtype", fields.text("torch_dtype", ""));
  return dtype.starts_with("torch.") ? dtype.substr(6) : dtype;
}

}  // namespace

Qwen3MoeConfig read_qwen3_moe_config(const base::Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  Qwen3MoeConfig config;
  refuse_unsupported(fields);
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  read_layers(fields, config);
  read_attention(fields, config);
  read_experts(fields, config);
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.storage_dtype = read_storage_dtype(fields);
  return config;
}

}  // namespace expertmesh::model
