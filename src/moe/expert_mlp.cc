// SPDX-License-Identifier: Apache-2.0
#include "moe/expert_mlp.h"

#include <atomic>

#include "moe/scratch.h"

namespace expertmesh::moe {
namespace {

std::atomic<const ExpertMlp*> g_forced{nullptr};

}  // namespace

void TEST_use_expert_mlp(const ExpertMlp* mlp) { g_forced.store(mlp); }

const ExpertMlp& choose_expert_mlp(at::ScalarType dtype) {
  if (const ExpertMlp* forced = g_forced.load(std::memory_order_relaxed)) return *forced;
  for (const ExpertMlp* mlp : {&packed_expert_mlp(), &native_expert_mlp()}) {
    if (mlp->supports(dtype)) return *mlp;
  }
  return reference_expert_mlp();
}

ExpertGrads new_expert_grads(const at::Tensor& x, const ExpertRows& rows, const ExpertWeights& weights,
                             const ExpertGradNeeds& needs) {
  const at::ScalarType dtype = x.scalar_type();
  ExpertGrads grads;
  if (needs.x) grads.x_RH = new_scratch({rows.num_rows(), x.size(1)}, dtype);
  if (needs.weights) grads.weights_R = new_scratch({rows.num_rows()}, at::kFloat);
  if (needs.gate_up_proj) grads.gate_up_proj = new_scratch(weights.gate_up_proj.sizes(), dtype);
  if (needs.down_proj) grads.down_proj = new_scratch(weights.down_proj.sizes(), dtype);
  return grads;
}

}  // namespace expertmesh::moe
