// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_5_moe/qwen3_5_moe.h"

#include <algorithm>

#include "model/common/decoder_model.h"
#include "model/qwen3_5_moe/layer.h"

namespace expertmesh::model {

std::unique_ptr<Model> build_qwen3_5_moe(const base::Json& json, const std::string& where) {
  const Qwen3_5MoeConfig config = read_qwen3_5_moe_config(json, where);
  DecoderOptions options;
  options.prefix = config.prefix;
  options.norm = norm_options(config);
  options.tied_embeddings = config.tie_word_embeddings;
  options.expert_layouts = {"fused", "split"};
  // Multi-token prediction and the vision tower: not computed, not trained.
  options.pass_through = {"mtp.", "model.visual."};
  options.sizes = {
      .vocab = config.vocab_size,
      .hidden = config.hidden_size,
      .layers = config.num_layers,
      .heads = config.attention.heads,
      .kv_heads = config.attention.kv_heads,
      .experts = config.experts.experts,
      .experts_per_token = config.experts.experts_per_token,
      .moe_layers = 0,
      .moe_intermediate = config.experts.intermediate,
      .linear_attention_layers = std::count(config.is_full_attention.begin(), config.is_full_attention.end(), false),
      .position_axes = config.mrope_section.empty() ? 1 : static_cast<int64_t>(config.mrope_section.size())};
  const auto rotary = std::make_shared<RotaryTables>(config.rope, config.mrope_section);
  return std::make_unique<DecoderModel>(
      std::move(options), [&](const std::string& path, int64_t index) -> std::unique_ptr<DecoderLayer> {
        return std::make_unique<Qwen3_5MoeLayer>(path, config, config.is_full_attention[static_cast<size_t>(index)],
                                                 rotary);
      });
}

}  // namespace expertmesh::model
