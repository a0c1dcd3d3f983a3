// SPDX-License-Identifier: Apache-2.0
// What all dispatchers have in common: the checks, the autograd function, and an ep group of one, where tokens stay
// where they are. A dispatcher is a DispatchStep: one forward through a layer, and its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "moe/dispatcher.h"
#include "moe/expert_mlp.h"

namespace expertmesh::moe {

struct StepContext {
  Routing& routing;
  int64_t num_local_experts;
  comm::Group& ep;  // outlives the step
  const ExpertMlp& mlp;
  const DispatcherOptions& options;
  std::shared_ptr<TokenTraffic> traffic;
};

struct StepGrads {
  at::Tensor tokens_TH;
  at::Tensor routing_TK;
  at::Tensor gate_up_proj;
  at::Tensor down_proj;
};

// What can be done while an exchange is on its way: a step may call it once, or leave it to its caller.
using Beside = std::function<void()>;

// Collective over ep, all of it. Whether a gradient is formed depends on requires_grad alone, which is equal on all
// ranks, so the exchanges are too.
class DispatchStep {
 public:
  virtual ~DispatchStep() = default;
  // tokens_TH and routing_TK are contiguous. What backward needs of this goes into `kept`.
  virtual at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                             std::vector<at::Tensor>& kept, const Beside& beside) = 0;
  virtual StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                             const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs,
                             const Beside& beside) = 0;
};

// May exchange counts over ep: each rank makes it where the others do.
using MakeStep = std::unique_ptr<DispatchStep> (*)(const StepContext& context);

// `make` is asked where ep has peers.
std::unique_ptr<Dispatcher> make_step_dispatcher(std::string_view name, const DispatcherOptions& options,
                                                 MakeStep make);

}  // namespace expertmesh::moe
