// SPDX-License-Identifier: Apache-2.0
// Walks a micro-batch through the layers and back. There is no graph across layers: each layer keeps its input and
// either its own graph or, with recompute, nothing, and is run again in backward. Units are gathered one layer ahead,
// freed at the layer's border, and reduced as soon as the layer's backward is done. Collective over every axis of the
// meshes: all ranks walk in the same order, whatever tokens they have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/balance_loss.h"
#include "train/sharded_model.h"

namespace expertmesh::train {

// What all layers keep of a document that is generated: one entry a layer.
using DocumentCache = std::vector<model::LayerCache>;
// The choices of all layers for a micro-batch.
using Routings = std::vector<moe::Routing>;

class LayerWalk {
 public:
  // `recompute`: decoder layers run again in backward instead of keeping their graph.
  LayerWalk(ShardedModel& model, bool recompute) : model_(model), recompute_(recompute) {}

  // Embedding and all layers; keeps what backward() needs. Returns hidden_TH, detached. `balance`, where given, gets
  // what the choices add to the balance loss; `routings`, where not empty, are choices that were made before.
  at::Tensor forward(const model::TokenBatch& batch, moe::BalanceSums* balance = nullptr, Routings routings = {});
  // From d loss / d hidden_TH back through all layers and the embedding; every unit's gradients are reduced.
  // `balance_grad_GE`: of the balance loss, for the probabilities in each row of a group; undefined: there is none.
  void backward(const at::Tensor& grad_hidden_TH, const at::Tensor& balance_grad_GE = {});
  // Forward alone for the sake of the choices: a later forward() of the same batch and weights takes them.
  Routings route(const model::TokenBatch& batch, moe::BalanceSums& balance);
  // Forward alone, no graph, nothing kept.
  at::Tensor infer(const model::TokenBatch& batch);
  // The same while text is generated. `documents`: the caches of each document of the batch, one a layer, from which it
  // goes on and which then hold its tokens too; none on a rank that only takes part.
  at::Tensor extend(const model::TokenBatch& batch, std::span<DocumentCache* const> documents);

 private:
  struct Saved {
    at::Tensor input;   // hidden_TH before the layer; the graph's leaf without recompute
    at::Tensor output;  // root of the layer's graph; undefined with recompute
    moe::Routing routing;
    moe::BalanceTerm balance;
  };

  at::Tensor run_layer(size_t index, const at::Tensor& hidden_TH, moe::Routing& routing, moe::BalanceTerm* balance,
                       std::span<model::LayerCache* const> caches = {});
  at::Tensor run_saved(size_t index, const at::Tensor& hidden_TH, Saved& saved);
  // `routings` gets one a layer.
  at::Tensor run_without_graph(const model::TokenBatch& batch, std::span<DocumentCache* const> documents,
                               moe::BalanceSums* balance, Routings& routings);
  at::Tensor embed();
  void enter_layer(size_t index);
  void leave_layer(size_t index);
  at::Tensor backward_layer(size_t index, const at::Tensor& grad_output, const at::Tensor& balance_grad_GE);

  ShardedModel& model_;
  bool recompute_;
  bool has_balance_ = false;  // of the micro-batch that was run forward
  model::TokenBatch batch_;
  std::vector<Saved> saved_;
};

}  // namespace expertmesh::train
