// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/qwen3_moe.h"

#include "model/common/decoder_model.h"
#include "model/qwen3_moe/layer.h"

namespace expertmesh::model {

std::unique_ptr<Model> build_qwen3_moe(const base::Json& json, const std::string& where) {
  const Qwen3MoeConfig config = read_qwen3_moe_config(json, where);
  DecoderOptions options;
  options.norm = {config.rms_norm_eps};
  options.tied_embeddings = config.tie_word_embeddings;
  options.sizes = {.vocab = config.vocab_size,
                   .hidden = config.hidden_size,
                   .layers = config.num_layers,
                   .heads = config.attention.heads,
                   .kv_heads = config.attention.kv_heads,
                   .experts = config.experts.experts,
                   .experts_per_token = config.experts.experts_per_token,
                   .moe_layers = 0,
                   .moe_intermediate = config.experts.intermediate};
  const auto rotary = std::make_shared<RotaryTables>(config.rope);
  return std::make_unique<DecoderModel>(
      std::move(options), [&](const std::string& path, int64_t index) -> std::unique_ptr<DecoderLayer> {
        return std::make_unique<Qwen3MoeLayer>(path, config, config.is_moe_layer[static_cast<size_t>(index)], rotary);
      });
}

}  // namespace expertmesh::model
