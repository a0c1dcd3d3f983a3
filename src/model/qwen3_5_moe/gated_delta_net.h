// SPDX-License-Identifier: Apache-2.0
// Linear attention by the gated delta rule: a causal convolution over queries, keys and values, a state that decays and
// is corrected token by token, and a gated norm on what is read from it.
// Shapes: T tokens, H hidden, K key heads, V value heads, D key head dim, E value head dim, C = 2KD + VE channels.
#pragma once

#include <string>

#include "model/common/layers.h"
#include "model/model.h"
#include "model/qwen3_5_moe/config.h"

namespace expertmesh::model {

// A convolution over the last tokens of each channel, then SiLU.
class CausalConv : public shard::Module {
 public:
  CausalConv(std::string path, int64_t channels, int64_t taps);
  // Takes and leaves conv_state_CW of the caches.
  at::Tensor forward(const at::Tensor& x_TC, const LayerContext& context) const;

 private:
  shard::Parameter& weight_;  // [C, 1, taps]
};

// norm(x) * weight * silu(gate) over the last dim.
class GatedRmsNorm : public shard::Module {
 public:
  GatedRmsNorm(std::string path, int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& gate, const ops::Operators& ops) const;

 private:
  shard::Parameter& weight_;
  double eps_;
};

class GatedDeltaNet : public shard::Module {
 public:
  GatedDeltaNet(const std::string& path, const Qwen3_5MoeConfig& config);

  // hidden_TH -> hidden_TH.
  at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const;

 private:
  GatedDeltaSizes sizes_;
  // Both set exponents of the decay: in bf16 a step of an optimizer would be lost in them, so they stay fp32.
  shard::Parameter& A_log_;    // [V]
  shard::Parameter& dt_bias_;  // [V]
  Linear in_proj_qkv_, in_proj_z_, in_proj_b_, in_proj_a_, out_proj_;
  CausalConv conv1d_;
  GatedRmsNorm norm_;
};

}  // namespace expertmesh::model
