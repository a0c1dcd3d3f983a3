// SPDX-License-Identifier: Apache-2.0
#include "model/common/embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include "ops/embedding_rows.h"
#include "ops/local_graph.h"
#include "ops/product.h"

namespace expertmesh::model {

TokenEmbedding::TokenEmbedding(std::string path, int64_t vocab, int64_t hidden)
    : Embedding(std::move(path)), table_(add_parameter("weight", {vocab, hidden}, {.sums_full_grad = true})) {}

at::Tensor TokenEmbedding::forward(const at::Tensor& ids_T) const {
  enter();
  return at::embedding(table_.value().detach(), ids_T);
}

void TokenEmbedding::add_gradient(const at::Tensor& ids_T, const at::Tensor& grad_TH) {
  if (!table_.trainable()) return;
  ops::add_to_rows(table_.full_grad(), ids_T, grad_TH);
}

LanguageModelHead::LanguageModelHead(const std::string& norm_path, const std::string& table_path, int64_t vocab,
                                     int64_t hidden, const NormOptions& norm, shard::Parameter* tied)
    : Head(table_path), norm_(norm_path, hidden, norm), table_(tied) {
  add_child(norm_);
  if (table_ == nullptr) table_ = &add_parameter("weight", {vocab, hidden}, {.sums_full_grad = true});
}

Head::LossResult LanguageModelHead::loss(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime,
                                         double scale, bool with_gradient) {
  enter();
  const at::AutoGradMode graph(with_gradient);
  const at::Tensor hidden = hidden_TH.detach().set_requires_grad(with_gradient);
  const at::Tensor normed = norm_.forward(hidden, *runtime.ops);
  bool is_fresh = false;  // the head writes first; a tied embedding adds to it
  at::Tensor grad_table;
  if (with_gradient && table_->trainable()) grad_table = table_->full_grad_to_write(is_fresh);
  const ops::CrossEntropyResult result = runtime.ops->linear_cross_entropy({
      .hidden_TH = normed,
      .weight_VH = table_->value(),
      .targets_T = batch.targets_T,
      .weights_T = batch.weights_T,
      .scale = scale,
      .needs_grad_hidden = with_gradient,
      .grad_weight_VH = grad_table,
      .overwrites_grad_weight = is_fresh,
  });
  if (!with_gradient) return {result.loss, {}};
  ops::run_backward(normed, result.grad_hidden_TH);
  return {result.loss, hidden.grad()};
}

at::Tensor LanguageModelHead::logprobs(const at::Tensor& hidden_TH, const TokenBatch& batch,
                                       const Runtime& runtime) const {
  enter();
  const at::NoGradGuard no_graph;
  const at::Tensor normed = norm_.forward(hidden_TH.detach(), *runtime.ops);
  return runtime.ops->linear_logprobs(normed, table_->value(), batch.targets_T);
}

at::Tensor LanguageModelHead::logits(const at::Tensor& hidden_TH, const Runtime& runtime) const {
  enter();
  const at::NoGradGuard no_graph;
  const at::Tensor normed = norm_.forward(hidden_TH.detach(), *runtime.ops);
  return ops::linear(normed, table_->value(), {}).to(at::kFloat);
}

}  // namespace expertmesh::model
