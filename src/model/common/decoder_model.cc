// SPDX-License-Identifier: Apache-2.0
#include "model/common/decoder_model.h"

#include <fmt/format.h>

#include <utility>

namespace expertmesh::model {

DecoderModel::DecoderModel(DecoderOptions options, const MakeLayer& make_layer)
    : Model(""),
      options_(std::move(options)),
      embedding_(options_.prefix + ".embed_tokens", options_.sizes.vocab, options_.sizes.hidden),
      head_(options_.prefix + ".norm", "lm_head", options_.sizes.vocab, options_.sizes.hidden, options_.norm,
            options_.tied_embeddings ? &embedding_.table() : nullptr) {
  add_child(embedding_);
  for (int64_t i = 0; i < options_.sizes.layers; ++i) {
    layers_.push_back(make_layer(fmt::format("{}.layers.{}", options_.prefix, i), i));
    add_child(*layers_.back());
    if (layers_.back()->experts() != nullptr) ++options_.sizes.moe_layers;
  }
  add_child(head_);
  fill_weight_table();
}

std::vector<DecoderLayer*> DecoderModel::layers() {
  std::vector<DecoderLayer*> layers;
  layers.reserve(layers_.size());
  for (const auto& layer : layers_) layers.push_back(layer.get());
  return layers;
}

void DecoderModel::fill_weight_table() {
  for (const shard::Parameter* parameter : parameters()) {
    if (parameter->is_expert()) continue;
    weight_table_.add(parameter->name(), parameter->global_shape()).keep_dtype = parameter->keep_fp32();
  }
  const Sizes& sizes = options_.sizes;
  for (const auto& layer : layers_) {
    const shard::Module* experts = layer->experts();
    if (experts == nullptr) continue;
    weight_table_.add_experts(experts->path(), sizes.experts, sizes.moe_intermediate, sizes.hidden, /*source=*/{},
                              options_.expert_layouts);
  }
  if (options_.tied_embeddings) weight_table_.add_alias("lm_head.weight", embedding_.table().name());
  for (const std::string& prefix : options_.pass_through) weight_table_.pass_through(prefix);
}

}  // namespace expertmesh::model
