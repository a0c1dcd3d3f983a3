// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a sparse layer: a router, experts, and for some models an expert that all tokens share. The
// router and the shared expert with its gate are dense parameters; only `Experts` has expert parameters.
#pragma once

#include <memory>
#include <string>

#include "model/common/config_parts.h"
#include "model/common/layers.h"
#include "model/common/mlp.h"
#include "model/model.h"
#include "moe/router.h"

namespace expertmesh::model {

// The weights of all experts of a layer. Its entry is where EFSDP gathers them.
class Experts : public shard::Module {
 public:
  Experts(const std::string& path, int64_t experts, int64_t hidden, int64_t intermediate);
  moe::ExpertWeights weights() const;

 private:
  shard::Parameter& gate_up_proj_;  // [E, 2I, H]
  shard::Parameter& down_proj_;     // [E, H, I]
};

struct SparseMoeOptions {
  int64_t hidden = 0;
  ExpertSizes sizes;
  bool norm_topk_prob = true;
  int64_t shared_intermediate = 0;  // of the shared expert; 0: there is none
};

class SparseMoe : public shard::Module {
 public:
  SparseMoe(const std::string& path, const SparseMoeOptions& options);
  // With a shared expert, sigmoid(its gate) * its output is added.
  at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const;

  Experts& experts() { return experts_; }
  const moe::Router& gate() const { return gate_; }

 private:
  moe::Router gate_;
  Experts experts_;
  std::unique_ptr<DenseMlp> shared_expert_;     // nullptr: none
  std::unique_ptr<Linear> shared_expert_gate_;  // [1, H]
};

}  // namespace expertmesh::model
