// SPDX-License-Identifier: Apache-2.0
// One rank's MoE layer with random numbers, to be timed: by `ep_dispatcher: auto` and by bench/dispatch_bench.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/group.h"
#include "moe/dispatcher.h"

namespace expertmesh::moe {

struct LayerShape {
  int64_t tokens = 0, hidden = 0, width = 0, experts = 0, top_k = 0;  // tokens of a rank
  at::ScalarType dtype = at::kBFloat16;
};

class SampleLayer {
 public:
  // With this rank's part of the experts; other ranks, other numbers.
  SampleLayer(const LayerShape& shape, const comm::Group& ep);

  // [tokens, experts], uniform; other ones each time.
  at::Tensor next_scores_TE();
  // The top_k highest of each token.
  at::Tensor choices(const at::Tensor& scores_TE) const;
  // Forward and backward.
  void step(const Dispatcher& dispatcher, comm::Group& ep, const at::Tensor& ids_TK) const;

 private:
  at::Tensor random(at::IntArrayRef sizes) const;

  at::Generator generator_;
  LayerShape shape_;
  at::Tensor hidden_TH_, grad_TH_, routing_TK_;
  ExpertWeights weights_;
};

}  // namespace expertmesh::moe
