// SPDX-License-Identifier: Apache-2.0
// What every model is to the trainer: an embedding, decoder layers and a head, driven one after the other. There is no
// graph across layers: each keeps its own small autograd graph (or nothing, with recompute), and the trainer walks the
// layers back in reverse. So sharded units are gathered and freed at layer borders and collectives keep one order.
// Shapes: T tokens of the micro-batch without any padding, H hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/weight_table.h"
#include "moe/choice_rule.h"
#include "moe/dispatcher.h"
#include "moe/router.h"
#include "ops/operators.h"
#include "shard/module.h"

namespace expertmesh::model {

// Documents laid end to end: padding is dropped before the model sees it, so it carries no load, loss or gradient.
struct TokenBatch {
  at::Tensor ids_T;              // int64
  at::Tensor positions_T;        // int64, restart at 0 for each document
  at::Tensor axis_positions_AT;  // int64 [3, T], time, height, width; undefined: positions_T on each. Only for models
                                 // that rotate by three axes
  std::vector<int64_t> cu_seqlens;  // document d is [cu_seqlens[d], cu_seqlens[d + 1]); first 0, last T
  at::Tensor targets_T;             // int64, the token to predict after position t; -100: none
  at::Tensor weights_T;             // fp32 loss weight of each target; undefined: all 1

  int64_t num_tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
};

// What the layers run with on this rank: operators, the experts' path, the ranks that share the experts.
struct Runtime {
  const ops::Operators* ops = &ops::native_operators();
  std::shared_ptr<moe::Dispatcher> dispatcher;
  std::shared_ptr<comm::Group> ep;  // size 1 without expert parallelism
  moe::ChoiceRule choice_rule;      // of the debug router; off by default
  int64_t chunk_size = 64;          // tokens a chunk of the gated delta rule: 16, 32 or 64
};

// What one layer keeps of one document between two forwards, so that a next token costs one token. Which members are
// used is the layer's affair. Undefined: nothing of the document was seen yet.
struct LayerCache {
  // Attention: M key/value heads of D, room for S tokens, of which `length` are there.
  at::Tensor keys_MSD, values_MSD;
  int64_t length = 0;
  // Gated delta net: the last inputs of its convolution [C, W - 1], and the state of each value head, fp32.
  at::Tensor conv_state_CW, delta_state_VDE;
};

// What a layer's forward gets beside its input.
struct LayerContext {
  const TokenBatch& batch;
  const Runtime& runtime;
  moe::Routing& routing;                     // this layer's for this micro-batch; dense layers leave it alone
  moe::BalanceTerm* balance = nullptr;       // this layer's part of the balance loss; nullptr: there is none
  std::span<LayerCache* const> caches = {};  // one a document, which goes on where its cache ends; empty: each document
                                             // starts here. Without graph.
};

class DecoderLayer : public shard::Module {
 public:
  using Module::Module;
  // hidden_TH -> hidden_TH.
  virtual at::Tensor forward(const at::Tensor& hidden_TH, const LayerContext& context) const = 0;
  // The module whose parameters are expert parameters, and the router with its load; nullptr for a dense layer.
  virtual shard::Module* experts() = 0;
  virtual const moe::Router* router() const = 0;
};

// No graph here either: forward gives a leaf for the first layer, whose gradient is handed to add_gradient.
class Embedding : public shard::Module {
 public:
  using Module::Module;
  virtual at::Tensor forward(const at::Tensor& ids_T) const = 0;  // [T, H]
  // Adds d/d table to the table's full_grad(): only the rows of ids_T are touched. Nothing where it is not trained.
  virtual void add_gradient(const at::Tensor& ids_T, const at::Tensor& grad_TH) = 0;
};

// Final norm and language-model head. Never holds more than a chunk of logits, whatever T is.
class Head : public shard::Module {
 public:
  using Module::Module;

  struct LossResult {
    double loss = 0.0;          // sum over the targets of weight * scale * nll
    at::Tensor grad_hidden_TH;  // undefined without gradient
  };
  // With gradient, those of the head's parameters are added: the norm's to value().mutable_grad(), the table's to
  // full_grad().
  virtual LossResult loss(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime, double scale,
                          bool with_gradient) = 0;
  // Natural log-probability of targets_T (0 where there is none): fp32 [T].
  virtual at::Tensor logprobs(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime) const = 0;
  // Scores of every token of the vocabulary to come next: fp32 [T, V], all held at once. For the few rows of a
  // generation step.
  virtual at::Tensor logits(const at::Tensor& hidden_TH, const Runtime& runtime) const = 0;
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
    int64_t linear_attention_layers = 0;  // gated delta nets
    int64_t position_axes = 1;            // of TokenBatch::axis_positions_AT, where it may be given
  };
  virtual Sizes sizes() const = 0;
  // Names in the checkpoint, shapes, expert dims: drives loading, saving and the report.
  virtual const ckpt::WeightTable& weight_table() const = 0;
  // Parameters that a token uses (for the start table): all but the experts it does not visit.
  int64_t active_parameters() const;
  int64_t total_parameters() const;
};

}  // namespace expertmesh::model
