// SPDX-License-Identifier: Apache-2.0
#include "train/layer_walk.h"

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/trace.h"
#include "ops/local_graph.h"

namespace expertmesh::train {
namespace {

moe::BalanceTerm balance_term(moe::BalanceSums* sums, size_t layer) {
  return {.sums = sums, .group = sums == nullptr ? 0 : sums->group_of(layer), .probs_TE = {}};
}

}  // namespace

// Completes this layer's gather and posts the next one's.
void LayerWalk::enter_layer(size_t index) {
  const auto& layers = model_.layers();
  layers[index].dense->wait();
  if (index + 1 < layers.size()) layers[index + 1].dense->unshard();
}

void LayerWalk::leave_layer(size_t index) {
  if (!model_.reshard_after_forward()) return;
  const auto& layer = model_.layers()[index];
  layer.dense->reshard();
  if (layer.experts != nullptr) layer.experts->reshard();
}

at::Tensor LayerWalk::run_layer(size_t index, const at::Tensor& hidden_TH, moe::Routing& routing,
                                moe::BalanceTerm* balance, std::span<model::LayerCache* const> caches) {
  return model_.layers()[index].module->forward(
      hidden_TH,
      {.batch = batch_, .runtime = model_.runtime(), .routing = routing, .balance = balance, .caches = caches});
}

at::Tensor LayerWalk::run_saved(size_t index, const at::Tensor& hidden_TH, Saved& saved) {
  return run_layer(index, hidden_TH, saved.routing, has_balance_ ? &saved.balance : nullptr);
}

at::Tensor LayerWalk::embed() {
  model_.root().wait();
  if (!model_.layers().empty()) model_.layers()[0].dense->unshard();
  const base::Span span("embedding");
  return model_.model().embedding().forward(batch_.ids_T);
}

at::Tensor LayerWalk::forward(const model::TokenBatch& batch, moe::BalanceSums* balance, Routings routings) {
  const base::Span span("forward", base::SpanKind::kScope);
  batch_ = batch;
  has_balance_ = balance != nullptr;
  EXPERTMESH_FAULT_POINT("train.forward");
  at::Tensor hidden_TH = embed();
  saved_.assign(model_.layers().size(), {});
  for (size_t i = 0; i < saved_.size(); ++i) {
    const base::Span layer("layer", base::SpanKind::kScope, static_cast<int64_t>(i));
    Saved& saved = saved_[i];
    saved.balance = balance_term(balance, i);
    if (!routings.empty()) saved.routing = std::move(routings[i]);
    enter_layer(i);
    if (recompute_) {
      const at::NoGradGuard no_grad;
      saved.input = hidden_TH;
      hidden_TH = run_saved(i, hidden_TH, saved);
    } else {
      saved.input = ops::make_graph_input(hidden_TH);
      saved.output = run_saved(i, saved.input, saved);
      hidden_TH = saved.output.detach();
    }
    leave_layer(i);
  }
  return hidden_TH;
}

at::Tensor LayerWalk::infer(const model::TokenBatch& batch) {
  Routings routings(model_.layers().size());
  return run_without_graph(batch, {}, nullptr, routings);
}

at::Tensor LayerWalk::extend(const model::TokenBatch& batch, std::span<DocumentCache* const> documents) {
  Routings routings(model_.layers().size());
  for (moe::Routing& routing : routings) routing.is_generating = true;
  return run_without_graph(batch, documents, nullptr, routings);
}

Routings LayerWalk::route(const model::TokenBatch& batch, moe::BalanceSums& balance) {
  Routings routings(model_.layers().size());
  run_without_graph(batch, {}, &balance, routings);
  return routings;
}

at::Tensor LayerWalk::run_without_graph(const model::TokenBatch& batch, std::span<DocumentCache* const> documents,
                                        moe::BalanceSums* balance, Routings& routings) {
  const at::NoGradGuard no_grad;
  batch_ = batch;
  at::Tensor hidden_TH = embed();
  for (DocumentCache* document : documents) document->resize(model_.layers().size());
  std::vector<model::LayerCache*> caches(documents.size());
  for (size_t i = 0; i < model_.layers().size(); ++i) {
    moe::BalanceTerm term = balance_term(balance, i);
    for (size_t d = 0; d < documents.size(); ++d) caches[d] = &(*documents[d])[i];
    enter_layer(i);
    hidden_TH = run_layer(i, hidden_TH, routings[i], balance == nullptr ? nullptr : &term, caches);
    leave_layer(i);
  }
  return hidden_TH;
}

at::Tensor LayerWalk::backward_layer(size_t index, const at::Tensor& grad_output, const at::Tensor& balance_grad_GE) {
  const base::Span span("layer", base::SpanKind::kScope, static_cast<int64_t>(index));
  const auto& layers = model_.layers();
  const auto& layer = layers[index];
  Saved saved = std::move(saved_[index]);
  layer.dense->wait();
  if (index > 0) layers[index - 1].dense->unshard();
  if (recompute_) {
    const base::Span recompute("recompute", base::SpanKind::kScope);
    saved.input = ops::make_graph_input(saved.input);
    saved.output = run_saved(index, saved.input, saved);
  } else if (layer.experts != nullptr) {
    layer.experts->wait();
  }
  if (const at::Tensor& probs_TE = saved.balance.probs_TE; probs_TE.defined()) {
    const at::Tensor grad_E = balance_grad_GE.select(0, static_cast<int64_t>(saved.balance.group));
    ops::run_backward(saved.output, grad_output, probs_TE, grad_E.expand_as(probs_TE).contiguous());
  } else {
    ops::run_backward(saved.output, grad_output);
  }
  // Operations of one group complete in the order of posting: the prefetch before this layer's reduction.
  if (index > 0) layers[index - 1].dense->wait();
  layer.dense->reduce_gradients();
  if (layer.experts != nullptr) layer.experts->reduce_gradients();
  layer.dense->reshard();
  if (layer.experts != nullptr) layer.experts->reshard();
  return saved.input.grad();
}

void LayerWalk::backward(const at::Tensor& grad_hidden_TH, const at::Tensor& balance_grad_GE) {
  const base::Span span("backward", base::SpanKind::kScope);
  EXPERTMESH_FAULT_POINT("train.backward");
  EXPERTMESH_CHECK(balance_grad_GE.defined() == has_balance_, "a balance loss forward and back");
  at::Tensor grad = grad_hidden_TH;
  for (size_t i = saved_.size(); i-- > 0;) grad = backward_layer(i, grad, balance_grad_GE);
  {
    const base::Span embedding("embedding backward");
    model_.model().embedding().add_gradient(batch_.ids_T, grad);
  }
  model_.root().reduce_gradients();
}

}  // namespace expertmesh::train
