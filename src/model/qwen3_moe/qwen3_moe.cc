// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/qwen3_moe.h"

#include <algorithm>

#include "model/common/embedding.h"
#include "model/qwen3_moe/layer.h"

namespace expertmesh::model {
namespace {

// Each parameter is stored under its own name; experts split or fused.
ckpt::WeightTable make_weight_table(const Qwen3MoeConfig& config, const shard::Module& model) {
  ckpt::WeightTable table;
  for (const shard::Parameter* parameter : model.parameters()) {
    if (!parameter->is_expert()) table.add(parameter->name(), parameter->global_shape());
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    table.add_experts(fmt::format("model.layers.{}.mlp.experts", layer), config.num_experts,
                      config.moe_intermediate_size, config.hidden_size);
  }
  if (config.tie_word_embeddings) table.add_alias("lm_head.weight", "model.embed_tokens.weight");
  return table;
}

class Qwen3MoeModel : public Model {
 public:
  explicit Qwen3MoeModel(const Qwen3MoeConfig& config)
      : Model(""),
        config_(config),
        embedding_("model.embed_tokens", config.vocab_size, config.hidden_size),
        head_("model.norm", "lm_head", config.vocab_size, config.hidden_size, config.rms_norm_eps,
              config.tie_word_embeddings ? &embedding_.table() : nullptr) {
    const auto rotary = std::make_shared<RotaryTables>(config.rope);
    add_child(embedding_);
    for (int64_t i = 0; i < config.num_layers; ++i) {
      layers_.push_back(std::make_unique<Qwen3MoeLayer>(fmt::format("model.layers.{}", i), config,
                                                        config.is_moe_layer[static_cast<size_t>(i)], rotary));
      add_child(*layers_.back());
    }
    add_child(head_);
    weight_table_ = make_weight_table(config, *this);
  }

  Embedding& embedding() override { return embedding_; }
  std::vector<DecoderLayer*> layers() override {
    std::vector<DecoderLayer*> layers;
    layers.reserve(layers_.size());
    for (const auto& layer : layers_) layers.push_back(layer.get());
    return layers;
  }
  Head& head() override { return head_; }
  bool tied_embeddings() const override { return config_.tie_word_embeddings; }

  Sizes sizes() const override {
    return {.vocab = config_.vocab_size,
            .hidden = config_.hidden_size,
            .layers = config_.num_layers,
            .heads = config_.num_heads,
            .kv_heads = config_.num_kv_heads,
            .experts = config_.num_experts,
            .experts_per_token = config_.num_experts_per_token,
            .moe_layers = std::count(config_.is_moe_layer.begin(), config_.is_moe_layer.end(), true),
            .moe_intermediate = config_.moe_intermediate_size};
  }

  const ckpt::WeightTable& weight_table() const override { return weight_table_; }

 private:
  Qwen3MoeConfig config_;
  TokenEmbedding embedding_;
  std::vector<std::unique_ptr<Qwen3MoeLayer>> layers_;
  LanguageModelHead head_;
  ckpt::WeightTable weight_table_;
};

}  // namespace

std::unique_ptr<Model> build_qwen3_moe(const base::Json& config, const std::string& where) {
  return std::make_unique<Qwen3MoeModel>(read_qwen3_moe_config(config, where));
}

}  // namespace expertmesh::model
