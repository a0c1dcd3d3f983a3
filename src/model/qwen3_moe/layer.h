// SPDX-License-Identifier: Apache-2.0
// A decoder layer: attention, then experts or a dense MLP, each behind a norm and around a residual.
#pragma once

#include <memory>
#include <string>

#include "model/common/layers.h"
#include "model/model.h"
#include "model/qwen3_moe/attention.h"
#include "model/qwen3_moe/config.h"
#include "moe/router.h"

namespace expertmesh::model {

// down(silu(gate x) * up x)
class DenseMlp : public shard::Module {
 public:
  DenseMlp(const std::string& path, int64_t hidden, int64_t intermediate);
  at::Tensor forward(const at::Tensor& hidden_TH, const ops::Operators& ops) const;

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};

// The weights of all experts of a layer. Its entry is where EFSDP gathers them.
class Experts : public shard::Module {
 public:
  Experts(const std::string& path, int64_t experts, int64_t hidden, int64_t intermediate);
  moe::ExpertWeights weights() const;

 private:
  shard::Parameter& gate_up_proj_;  // [E, 2I, H]
  shard::Parameter& down_proj_;     // [E, H, I]
};

class SparseMoe : public shard::Module {
 public:
  SparseMoe(const std::string& path, const Qwen3MoeConfig& config);
  at::Tensor forward(const at::Tensor& hidden_TH, const Runtime& runtime, moe::Routing& routing) const;

  Experts& experts() { return experts_; }
  const moe::Router& gate() const { return gate_; }

 private:
  moe::Router gate_;
  Experts experts_;
};

class Qwen3MoeLayer : public DecoderLayer {
 public:
  Qwen3MoeLayer(const std::string& path, const Qwen3MoeConfig& config, bool is_moe,
                std::shared_ptr<RotaryTables> rotary);

  at::Tensor forward(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime,
                     moe::Routing& routing) const override;
  shard::Module* experts() override { return moe_ == nullptr ? nullptr : &moe_->experts(); }
  const moe::Router* router() const override { return moe_ == nullptr ? nullptr : &moe_->gate(); }

 private:
  Qwen3MoeAttention self_attn_;
  std::unique_ptr<SparseMoe> moe_;  // one of the two
  std::unique_ptr<DenseMlp> mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
};

}  // namespace expertmesh::model
