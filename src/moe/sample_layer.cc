// SPDX-License-Identifier: Apache-2.0
#include "moe/sample_layer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <optional>

namespace expertmesh::moe {

SampleLayer::SampleLayer(const LayerShape& shape, const comm::Group& ep)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(ep.rank() + 1))), shape_(shape) {
  const int64_t local = shape.experts / ep.size();
  hidden_TH_ = random({shape.tokens, shape.hidden});
  grad_TH_ = random({shape.tokens, shape.hidden});
  weights_.gate_up_proj = (random({local, 2 * shape.width, shape.hidden}) * 0.02).set_requires_grad(true);
  weights_.down_proj = (random({local, shape.hidden, shape.width}) * 0.02).set_requires_grad(true);
  routing_TK_ = at::rand({shape.tokens, shape.top_k}, generator_, at::kFloat);
}

double SampleLayer::timed_step(const Dispatcher& dispatcher, comm::Group& ep, comm::Group& all,
                               const std::vector<int64_t>& ids, StageSeconds* forward, StageSeconds* backward) const {
  using Clock = std::chrono::steady_clock;
  Routing routing;
  routing.ids_TK = ids_tensor(ids, shape_.top_k);
  routing.decided = true;
  const auto first = [&](const at::Tensor& rows) { return rows.narrow(0, 0, routing.ids_TK.size(0)); };
  const at::Tensor hidden_TH = first(hidden_TH_).detach().set_requires_grad(true);
  const at::Tensor weights_TK = first(routing_TK_).detach().set_requires_grad(true);
  all.barrier("time a step");
  const auto start = Clock::now();
  std::optional<StageClock> clock;
  if (forward != nullptr) clock.emplace(*forward);
  const at::Tensor out_TH = dispatcher.forward(hidden_TH, weights_TK, routing, weights_, ep);
  clock.reset();
  if (backward != nullptr) clock.emplace(*backward);
  out_TH.backward(first(grad_TH_));
  clock.reset();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const at::Tensor* leaf : {&weights_.gate_up_proj, &weights_.down_proj}) {
    leaf->mutable_grad().reset();
  }
  return all.all_reduce_double(seconds, comm::ReduceOp::kMax, "time a step");
}

at::Tensor SampleLayer::random(at::IntArrayRef sizes) const {
  return at::randn(sizes, generator_, at::kFloat).to(shape_.dtype);
}

at::Tensor ids_tensor(const std::vector<int64_t>& ids, int64_t top_k) {
  return at::tensor(ids, at::kLong).view({-1, top_k});
}

}  // namespace expertmesh::moe
