// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/config.h"

#include <algorithm>

#include "model/common/json_fields.h"

namespace expertmesh::model {
namespace {

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

}  // namespace

Qwen3MoeConfig read_qwen3_moe_config(const base::Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  Qwen3MoeConfig config;
  refuse_unsupported(fields);
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  read_layers(fields, config);
  config.attention = read_attention_sizes(fields, config.hidden_size);
  config.rope = read_rope(fields, config.attention.head_dim, read_max_positions(fields));
  config.experts = read_expert_sizes(fields);
  config.norm_topk_prob = fields.boolean("norm_topk_prob", false);
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.storage_dtype = read_storage_dtype(fields);
  return config;
}

}  // namespace expertmesh::model
