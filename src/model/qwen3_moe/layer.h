// SPDX-License-Identifier: Apache-2.0
// A decoder layer: attention, then experts or a dense MLP, each behind a norm and around a residual.
#pragma once

#include <memory>
#include <string>

#include "model/common/attention.h"
#include "model/common/layers.h"
#include "model/common/sparse_moe.h"
#include "model/model.h"
#include "model/qwen3_moe/config.h"

namespace expertmesh::model {

class Qwen3MoeLayer : public DecoderLayer {
 public:
  Qwen3MoeLayer(const std::string& path, const Qwen3MoeConfig& config, bool is_moe,
                std::shared_ptr<RotaryTables> rotary);

  at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const override;
  shard::Module* experts() override { return moe_ == nullptr ? nullptr : &moe_->experts(); }
  const moe::Router* router() const override { return moe_ == nullptr ? nullptr : &moe_->gate(); }

 private:
  Attention self_attn_;
  std::unique_ptr<SparseMoe> moe_;  // one of the two
  std::unique_ptr<DenseMlp> mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
};

}  // namespace expertmesh::model
