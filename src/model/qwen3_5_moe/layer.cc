// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_5_moe/layer.h"

#include <ATen/TensorOperators.h>

namespace expertmesh::model {

NormOptions norm_options(const Qwen3_5MoeConfig& config) { return {.eps = config.rms_norm_eps, .weight_offset = 1.0}; }

namespace {

AttentionOptions attention_options(const Qwen3_5MoeConfig& config) {
  return {
      .hidden = config.hidden_size, .sizes = config.attention, .has_output_gate = true, .norm = norm_options(config)};
}

SparseMoeOptions moe_options(const Qwen3_5MoeConfig& config) {
  return {.hidden = config.hidden_size,
          .sizes = config.experts,
          .norm_topk_prob = true,
          .shared_intermediate = config.shared_intermediate};
}

}  // namespace

Qwen3_5MoeLayer::Qwen3_5MoeLayer(const std::string& path, const Qwen3_5MoeConfig& config, bool is_full_attention,
                                 std::shared_ptr<RotaryTables> rotary)
    : DecoderLayer(path),
      mlp_(path + ".mlp", moe_options(config)),
      input_layernorm_(path + ".input_layernorm", config.hidden_size, norm_options(config)),
      post_attention_layernorm_(path + ".post_attention_layernorm", config.hidden_size, norm_options(config)) {
  if (is_full_attention) {
    self_attn_ = std::make_unique<Attention>(path + ".self_attn", attention_options(config), std::move(rotary));
    add_child(*self_attn_);
  } else {
    linear_attn_ = std::make_unique<GatedDeltaNet>(path + ".linear_attn", config);
    add_child(*linear_attn_);
  }
  add_child(mlp_);
  add_child(input_layernorm_);
  add_child(post_attention_layernorm_);
}

at::Tensor Qwen3_5MoeLayer::forward(const at::Tensor& hidden_TH, const LayerContext& context) const {
  enter();
  const ops::Operators& ops = *context.runtime.ops;
  const at::Tensor normed_TH = input_layernorm_.forward(hidden_TH, ops);
  const at::Tensor attended_TH = hidden_TH + (self_attn_ != nullptr ? self_attn_->forward(normed_TH, context)
                                                                    : linear_attn_->forward(normed_TH, context));
  return attended_TH + mlp_.forward(post_attention_layernorm_.forward(attended_TH, ops), context);
}

}  // namespace expertmesh::model
