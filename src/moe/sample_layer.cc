// SPDX-License-Identifier: Apache-2.0
#include "moe/sample_layer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

namespace expertmesh::moe {

SampleLayer::SampleLayer(const LayerShape& shape, const comm::Group& ep)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(ep.rank() + 1))), shape_(shape) {
  const int64_t local = shape.experts / ep.size();
  hidden_TH_ = random({shape.tokens, shape.hidden}).set_requires_grad(true);
  grad_TH_ = random({shape.tokens, shape.hidden});
  weights_.gate_up_proj = (random({local, 2 * shape.width, shape.hidden}) * 0.02).set_requires_grad(true);
  weights_.down_proj = (random({local, shape.hidden, shape.width}) * 0.02).set_requires_grad(true);
  routing_TK_ = at::rand({shape.tokens, shape.top_k}, generator_, at::kFloat).set_requires_grad(true);
}

at::Tensor SampleLayer::next_scores_TE() { return at::rand({shape_.tokens, shape_.experts}, generator_, at::kFloat); }

at::Tensor SampleLayer::choices(const at::Tensor& scores_TE) const {
  return scores_TE.argsort(int64_t{1}, true).slice(1, 0, shape_.top_k).contiguous();
}

void SampleLayer::step(const Dispatcher& dispatcher, comm::Group& ep, const at::Tensor& ids_TK) const {
  Routing routing;
  routing.ids_TK = ids_TK;
  routing.decided = true;
  dispatcher.forward(hidden_TH_, routing_TK_, routing, weights_, ep).backward(grad_TH_);
  for (const at::Tensor* leaf : {&hidden_TH_, &routing_TK_, &weights_.gate_up_proj, &weights_.down_proj}) {
    leaf->mutable_grad().reset();
  }
}

at::Tensor SampleLayer::random(at::IntArrayRef sizes) const {
  return at::randn(sizes, generator_, at::kFloat).to(shape_.dtype);
}

}  // namespace expertmesh::moe
