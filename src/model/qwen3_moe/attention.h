// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention with an RMS norm on each query and key head, and rotary embedding.
#pragma once

#include <memory>
#include <string>

#include "model/common/layers.h"
#include "model/model.h"
#include "model/qwen3_moe/config.h"

namespace expertmesh::model {

class Qwen3MoeAttention : public shard::Module {
 public:
  Qwen3MoeAttention(const std::string& path, const Qwen3MoeConfig& config, std::shared_ptr<RotaryTables> rotary);

  at::Tensor forward(const at::Tensor& hidden_TH, const TokenBatch& batch, const ops::Operators& ops) const;

 private:
  // A projection as heads, normed and rotated.
  at::Tensor rotated_heads(const at::Tensor& projected, const RmsNorm& norm, const TokenBatch& batch,
                           const ops::Operators& ops) const;

  int64_t head_dim_;
  std::shared_ptr<RotaryTables> rotary_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  RmsNorm q_norm_, k_norm_;
};

}  // namespace expertmesh::model
