// SPDX-License-Identifier: Apache-2.0
#include "train/layer_walk.h"

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/fault.h"
#include "ops/local_graph.h"

namespace expertmesh::train {

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
                                std::span<model::LayerCache* const> caches) {
  return model_.layers()[index].module->forward(
      hidden_TH, {.batch = batch_, .runtime = model_.runtime(), .routing = routing, .caches = caches});
}

at::Tensor LayerWalk::embed() {
  model_.root().wait();
  if (!model_.layers().empty()) model_.layers()[0].dense->unshard();
  return model_.model().embedding().forward(batch_.ids_T);
}

at::Tensor LayerWalk::forward(const model::TokenBatch& batch) {
  batch_ = batch;
  EXPERTMESH_FAULT_POINT("train.forward");
  at::Tensor hidden_TH = embed();
  saved_.assign(model_.layers().size(), {});
  for (size_t i = 0; i < saved_.size(); ++i) {
    Saved& saved = saved_[i];
    enter_layer(i);
    if (recompute_) {
      const at::NoGradGuard no_grad;
      saved.input = hidden_TH;
      hidden_TH = run_layer(i, hidden_TH, saved.routing);
    } else {
      saved.input = ops::make_graph_input(hidden_TH);
      saved.output = run_layer(i, saved.input, saved.routing);
      hidden_TH = saved.output.detach();
    }
    leave_layer(i);
  }
  return hidden_TH;
}

at::Tensor LayerWalk::infer(const model::TokenBatch& batch) { return run_without_graph(batch, {}, false); }

at::Tensor LayerWalk::extend(const model::TokenBatch& batch, std::span<DocumentCache* const> documents) {
  return run_without_graph(batch, documents, true);
}

at::Tensor LayerWalk::run_without_graph(const model::TokenBatch& batch, std::span<DocumentCache* const> documents,
                                        bool is_generating) {
  const at::NoGradGuard no_grad;
  batch_ = batch;
  at::Tensor hidden_TH = embed();
  for (DocumentCache* document : documents) document->resize(model_.layers().size());
  std::vector<model::LayerCache*> caches(documents.size());
  for (size_t i = 0; i < model_.layers().size(); ++i) {
    moe::Routing routing;
    routing.is_generating = is_generating;
    for (size_t d = 0; d < documents.size(); ++d) caches[d] = &(*documents[d])[i];
    enter_layer(i);
    hidden_TH = run_layer(i, hidden_TH, routing, caches);
    leave_layer(i);
  }
  return hidden_TH;
}

at::Tensor LayerWalk::backward_layer(size_t index, const at::Tensor& grad_output) {
  const auto& layers = model_.layers();
  const auto& layer = layers[index];
  Saved saved = std::move(saved_[index]);
  layer.dense->wait();
  if (index > 0) layers[index - 1].dense->unshard();
  if (recompute_) {
    saved.input = ops::make_graph_input(saved.input);
    saved.output = run_layer(index, saved.input, saved.routing);
  } else if (layer.experts != nullptr) {
    layer.experts->wait();
  }
  ops::run_backward(saved.output, grad_output);
  // Operations of one group complete in the order of posting: the prefetch before this layer's reduction.
  if (index > 0) layers[index - 1].dense->wait();
  layer.dense->reduce_gradients();
  if (layer.experts != nullptr) layer.experts->reduce_gradients();
  layer.dense->reshard();
  if (layer.experts != nullptr) layer.experts->reshard();
  return saved.input.grad();
}

void LayerWalk::backward(const at::Tensor& grad_hidden_TH) {
  EXPERTMESH_FAULT_POINT("train.backward");
  at::Tensor grad = grad_hidden_TH;
  for (size_t i = saved_.size(); i-- > 0;) grad = backward_layer(i, grad);
  model_.model().embedding().add_gradient(batch_.ids_T, grad);
  model_.root().reduce_gradients();
}

}  // namespace expertmesh::train
