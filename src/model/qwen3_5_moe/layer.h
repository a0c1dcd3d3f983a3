// SPDX-License-Identifier: Apache-2.0
// A decoder layer: linear or full attention, then experts beside a shared one, each behind a norm and around a
// residual.
#pragma once

#include <memory>
#include <string>

#include "model/common/attention.h"
#include "model/common/layers.h"
#include "model/common/sparse_moe.h"
#include "model/model.h"
#include "model/qwen3_5_moe/config.h"
#include "model/qwen3_5_moe/gated_delta_net.h"

namespace expertmesh::model {

// Norms keep their weights as the distance from 1, but for the gated one.
NormOptions norm_options(const Qwen3_5MoeConfig& config);

class Qwen3_5MoeLayer : public DecoderLayer {
 public:
  Qwen3_5MoeLayer(const std::string& path, const Qwen3_5MoeConfig& config, bool is_full_attention,
                  std::shared_ptr<RotaryTables> rotary);

  at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const override;
  shard::Module* experts() override { return &mlp_.experts(); }
  const moe::Router* router() const override { return &mlp_.gate(); }

 private:
  std::unique_ptr<Attention> self_attn_;  // one of the two
  std::unique_ptr<GatedDeltaNet> linear_attn_;
  SparseMoe mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
};

}  // namespace expertmesh::model
