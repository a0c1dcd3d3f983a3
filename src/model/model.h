// SPDX-License-Identifier: Apache-2.0
// What every model is to the trainer: an embedding, decoder layers and a head, driven one after the other. There is no
// graph across layers: each keeps its own small autograd graph (or nothing, with recompute), and the trainer walks the
// layers back in reverse. So sharded units are gathered and freed at layer borders and collectives keep one order.
// Shapes: T tokens of the micro-batch without any padding, H hidden, V vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ckpt/weight_table.h"
#include "moe/dispatcher.h"
#include "shard/module.h"

namespace expertmesh::model {

// Documents laid end to end: padding is dropped before the model sees it, so it carries no load, loss or gradient.
struct TokenBatch {
  at::Tensor ids_T;                 // int64
  at::Tensor positions_T;           // int64, restart at 0 for each document
  std::vector<int64_t> cu_seqlens;  // document d is [cu_seqlens[d], cu_seqlens[d + 1]); first 0, last T
  at::Tensor targets_T;             // int64, the token to predict after position t; -100: none
  at::Tensor weights_T;             // fp32 loss weight of each target; undefined: all 1

  int64_t num_tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
};

// How the routed experts run on this rank; the same for all layers.
struct MoeRuntime {
  std::shared_ptr<moe::Dispatcher> dispatcher;
  std::shared_ptr<comm::Group> ep;  // size 1 without expert parallelism
  std::string debug_router;         // empty, or "balanced", "hot:K", "none:RANK", each with an optional "@rank"
};

class DecoderLayer : public shard::Module {
 public:
  using Module::Module;
  // hidden_TH -> hidden_TH. `routing` is this layer's for this micro-batch (ignored by dense layers).
  virtual at::Tensor forward(const at::Tensor& hidden_TH, const TokenBatch& batch, const MoeRuntime& runtime,
                             moe::Routing& routing) const = 0;
  // The module whose parameters are expert parameters; nullptr for a dense layer.
  virtual shard::Module* experts() = 0;
};

class Embedding : public shard::Module {
 public:
  using Module::Module;
  virtual at::Tensor forward(const at::Tensor& ids_T) const = 0;  // [T, H]; differentiable in the table
};

// Final norm and language-model head.
class Head : public shard::Module {
 public:
  using Module::Module;

  // Sum over the targets of weight * scale * nll, in fp32 (a scalar), and, with gradient: d/d hidden_TH. Gradients of the
  // head's parameters are added to their value().mutable_grad(). Never holds more than a chunk of logits.
  struct LossResult {
    at::Tensor loss;           // fp64 scalar
    at::Tensor grad_hidden_TH; // undefined without gradient
  };
  virtual LossResult loss(const at::Tensor& hidden_TH, const TokenBatch& batch, double scale, bool with_gradient) const = 0;
  // Natural log-probability of targets_T (0 where there is none): fp32 [T].
  virtual at::Tensor logprobs(const at::Tensor& hidden_TH, const TokenBatch& batch) const = 0;
};

class Model : public shard::Module {
 public:
  using Module::Module;
  virtual Embedding& embedding() = 0;
  virtual std::vector<DecoderLayer*> layers() = 0;
  virtual Head& head() = 0;
  virtual bool tied_embeddings() const = 0;  // the head reads the embedding's table

  // Sizes for tables, checks and estimates.
  struct Sizes {
    int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, experts = 0, experts_per_token = 0;
    int64_t moe_layers = 0, moe_intermediate = 0;
  };
  virtual Sizes sizes() const = 0;
  // Names in the checkpoint, shapes, expert dims: drives loading, saving and the report.
  virtual const ckpt::WeightTable& weight_table() const = 0;
  // Parameters that a token uses (for the start table): all but the experts it does not visit.
  int64_t active_parameters() const;
  int64_t total_parameters() const;
};

}  // namespace expertmesh::model
