// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/layer.h"

#include <ATen/TensorOperators.h>

namespace expertmesh::model {

DenseMlp::DenseMlp(const std::string& path, int64_t hidden, int64_t intermediate)
    : Module(path),
      gate_proj_(path + ".gate_proj", hidden, intermediate),
      up_proj_(path + ".up_proj", hidden, intermediate),
      down_proj_(path + ".down_proj", intermediate, hidden) {
  add_child(gate_proj_);
  add_child(up_proj_);
  add_child(down_proj_);
}

at::Tensor DenseMlp::forward(const at::Tensor& hidden_TH, const ops::Operators& ops) const {
  enter();
  return down_proj_.forward(ops.swiglu(gate_proj_.forward(hidden_TH), up_proj_.forward(hidden_TH)));
}

Experts::Experts(const std::string& path, int64_t experts, int64_t hidden, int64_t intermediate)
    : Module(path),
      gate_up_proj_(add_parameter("gate_up_proj", {experts, 2 * intermediate, hidden}, {.is_expert = true})),
      down_proj_(add_parameter("down_proj", {experts, hidden, intermediate}, {.is_expert = true})) {}

moe::ExpertWeights Experts::weights() const {
  enter();
  return {gate_up_proj_.value(), down_proj_.value()};
}

SparseMoe::SparseMoe(const std::string& path, const Qwen3MoeConfig& config)
    : Module(path),
      gate_(path + ".gate", {.hidden = config.hidden_size,
                             .num_experts = config.num_experts,
                             .top_k = config.num_experts_per_token,
                             .norm_topk_prob = config.norm_topk_prob}),
      experts_(path + ".experts", config.num_experts, config.hidden_size, config.moe_intermediate_size) {
  add_child(gate_);
  add_child(experts_);
}

at::Tensor SparseMoe::forward(const at::Tensor& hidden_TH, const Runtime& runtime, moe::Routing& routing) const {
  enter();
  const at::Tensor weights_TK = gate_.forward(hidden_TH, routing, runtime.choice_rule);
  return runtime.dispatcher->forward(hidden_TH, weights_TK, routing, experts_.weights(), *runtime.ep);
}

Qwen3MoeLayer::Qwen3MoeLayer(const std::string& path, const Qwen3MoeConfig& config, bool is_moe,
                             std::shared_ptr<RotaryTables> rotary)
    : DecoderLayer(path),
      self_attn_(path + ".self_attn", config, std::move(rotary)),
      input_layernorm_(path + ".input_layernorm", config.hidden_size, config.rms_norm_eps),
      post_attention_layernorm_(path + ".post_attention_layernorm", config.hidden_size, config.rms_norm_eps) {
  add_child(self_attn_);
  if (is_moe) {
    moe_ = std::make_unique<SparseMoe>(path + ".mlp", config);
    add_child(*moe_);
  } else {
    mlp_ = std::make_unique<DenseMlp>(path + ".mlp", config.hidden_size, config.intermediate_size);
    add_child(*mlp_);
  }
  add_child(input_layernorm_);
  add_child(post_attention_layernorm_);
}

at::Tensor Qwen3MoeLayer::forward(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime,
                                  moe::Routing& routing) const {
  enter();
  const ops::Operators& ops = *runtime.ops;
  const at::Tensor attended = hidden_TH + self_attn_.forward(input_layernorm_.forward(hidden_TH, ops), batch, ops);
  const at::Tensor normed = post_attention_layernorm_.forward(attended, ops);
  const at::Tensor mixed = moe_ != nullptr ? moe_->forward(normed, runtime, routing) : mlp_->forward(normed, ops);
  return attended + mixed;
}

}  // namespace expertmesh::model
