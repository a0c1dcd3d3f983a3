// SPDX-License-Identifier: Apache-2.0
#include "model/common/sparse_moe.h"

#include <ATen/TensorOperators.h>

namespace expertmesh::model {

Experts::Experts(const std::string& path, int64_t experts, int64_t hidden, int64_t intermediate)
    : Module(path),
      gate_up_proj_(add_parameter("gate_up_proj", {experts, 2 * intermediate, hidden}, {.is_expert = true})),
      down_proj_(add_parameter("down_proj", {experts, hidden, intermediate}, {.is_expert = true})) {}

moe::ExpertWeights Experts::weights() const {
  enter();
  return {gate_up_proj_.value(), down_proj_.value()};
}

SparseMoe::SparseMoe(const std::string& path, const SparseMoeOptions& options)
    : Module(path),
      gate_(path + ".gate", {.hidden = options.hidden,
                             .num_experts = options.sizes.experts,
                             .top_k = options.sizes.experts_per_token,
                             .norm_topk_prob = options.norm_topk_prob}),
      experts_(path + ".experts", options.sizes.experts, options.hidden, options.sizes.intermediate) {
  add_child(gate_);
  add_child(experts_);
  if (options.shared_intermediate == 0) return;
  shared_expert_ = std::make_unique<DenseMlp>(path + ".shared_expert", options.hidden, options.shared_intermediate);
  shared_expert_gate_ = std::make_unique<Linear>(path + ".shared_expert_gate", options.hidden, 1);
  add_child(*shared_expert_);
  add_child(*shared_expert_gate_);
}

at::Tensor SparseMoe::forward(const at::Tensor& hidden_TH, const LayerContext& context) const {
  enter();
  const Runtime& runtime = context.runtime;
  const at::Tensor weights_TK = gate_.forward(hidden_TH, context.routing, runtime.choice_rule, context.balance);
  if (shared_expert_ == nullptr) {
    return runtime.dispatcher->forward(hidden_TH, weights_TK, context.routing, experts_.weights(), *runtime.ep);
  }
  const moe::LocalWork shared_expert = [&](const at::Tensor& tokens_TH) {
    const at::Tensor gate_T1 = shared_expert_gate_->forward(tokens_TH);
    return runtime.ops->sigmoid_gate(shared_expert_->forward(tokens_TH, *runtime.ops), gate_T1);
  };
  const moe::Dispatcher::Output out = runtime.dispatcher->forward(hidden_TH, weights_TK, context.routing,
                                                                  experts_.weights(), *runtime.ep, shared_expert);
  return out.experts_TH + out.local_TH;
}

}  // namespace expertmesh::model
