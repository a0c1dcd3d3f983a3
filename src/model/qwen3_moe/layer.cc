// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/layer.h"

#include <ATen/TensorOperators.h>

namespace expertmesh::model {

namespace {

AttentionOptions attention_options(const Qwen3MoeConfig& config) {
  return {
      .hidden = config.hidden_size, .sizes = config.attention, .has_output_gate = false, .norm = {config.rms_norm_eps}};
}

SparseMoeOptions moe_options(const Qwen3MoeConfig& config) {
  return {.hidden = config.hidden_size,
          .sizes = config.experts,
          .norm_topk_prob = config.norm_topk_prob,
          .shared_intermediate = 0};
}

}  // namespace

Qwen3MoeLayer::Qwen3MoeLayer(const std::string& path, const Qwen3MoeConfig& config, bool is_moe,
                             std::shared_ptr<RotaryTables> rotary)
    : DecoderLayer(path),
      self_attn_(path + ".self_attn", attention_options(config), std::move(rotary)),
      input_layernorm_(path + ".input_layernorm", config.hidden_size, {config.rms_norm_eps}),
      post_attention_layernorm_(path + ".post_attention_layernorm", config.hidden_size, {config.rms_norm_eps}) {
  add_child(self_attn_);
  if (is_moe) {
    moe_ = std::make_unique<SparseMoe>(path + ".mlp", moe_options(config));
    add_child(*moe_);
  } else {
    mlp_ = std::make_unique<DenseMlp>(path + ".mlp", config.hidden_size, config.intermediate_size);
    add_child(*mlp_);
  }
  add_child(input_layernorm_);
  add_child(post_attention_layernorm_);
}

at::Tensor Qwen3MoeLayer::forward(const at::Tensor& hidden_TH, const LayerContext& context) const {
  enter();
  const ops::Operators& ops = *context.runtime.ops;
  const at::Tensor attended = hidden_TH + self_attn_.forward(input_layernorm_.forward(hidden_TH, ops), context);
  const at::Tensor normed = post_attention_layernorm_.forward(attended, ops);
  const at::Tensor mixed = moe_ != nullptr ? moe_->forward(normed, context) : mlp_->forward(normed, ops);
  return attended + mixed;
}

}  // namespace expertmesh::model
