// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention with an RMS norm on each query and key head, rotary embedding, and for some models a gate on
// what each head gives.
#pragma once

#include <memory>
#include <string>

#include "model/common/config_parts.h"
#include "model/common/layers.h"
#include "model/common/rope.h"
#include "model/model.h"

namespace expertmesh::model {

struct AttentionOptions {
  int64_t hidden = 0;
  AttentionSizes sizes;          // a bias is one on all four projections
  bool has_output_gate = false;  // q_proj gives, for each head, its query and after it the gate of its output
  NormOptions norm;              // of query and key heads
};

class Attention : public shard::Module {
 public:
  Attention(const std::string& path, const AttentionOptions& options, std::shared_ptr<RotaryTables> rotary);

  // hidden_TH -> hidden_TH.
  at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const;

 private:
  // What each query head gathers of the values, [T, N, D].
  at::Tensor mix(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                 const LayerContext& context) const;
  // A projection's heads, normed and rotated.
  static at::Tensor rotated(const at::Tensor& heads_TND, const RmsNorm& norm, const RotaryAngles& angles,
                            const ops::Operators& ops);

  AttentionOptions options_;
  std::shared_ptr<RotaryTables> rotary_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  RmsNorm q_norm_, k_norm_;
};

}  // namespace expertmesh::model
