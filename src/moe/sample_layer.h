// SPDX-License-Identifier: Apache-2.0
// One rank's MoE layer with random numbers, to be timed: by `ep_dispatcher: auto` and by `expertmesh bench moe`.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "moe/dispatcher.h"
#include "moe/stage_clock.h"

namespace expertmesh::moe {

struct LayerShape {
  int64_t tokens = 0, hidden = 0, width = 0, experts = 0, top_k = 0;  // tokens of a rank, at most
  at::ScalarType dtype = at::kBFloat16;
};

class SampleLayer {
 public:
  // With this rank's part of the experts; other ranks, other numbers.
  SampleLayer(const LayerShape& shape, const comm::Group& ep);

  // Seconds of a forward and a backward on the slowest rank, equal on all; what the stages took is added to `forward`
  // and `backward` where they are given. ids: top_k experts for each of the layer's tokens, or of its first ones.
  // Collective over ep and all, which has the ranks of every ep group.
  double timed_step(const Dispatcher& dispatcher, comm::Group& ep, comm::Group& all, const std::vector<int64_t>& ids,
                    StageSeconds* forward = nullptr, StageSeconds* backward = nullptr) const;

 private:
  at::Tensor random(at::IntArrayRef sizes) const;

  at::Generator generator_;
  LayerShape shape_;
  at::Tensor hidden_TH_, grad_TH_, routing_TK_;
  ExpertWeights weights_;
};

// [tokens, top_k]
at::Tensor ids_tensor(const std::vector<int64_t>& ids, int64_t top_k);

}  // namespace expertmesh::moe
