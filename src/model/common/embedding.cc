// SPDX-License-Identifier: Apache-2.0
#include "model/common/embedding.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cpu/cross_entropy.h"
#include "ops/local_graph.h"
#include "ops/product.h"
#include "ops/raw.h"

namespace expertmesh::model {
namespace {

// sum[ids[t]] += rows[t]. Tokens of one id are added in order of t whatever the threads: each thread owns columns.
void add_rows(const at::Tensor& sum, const at::Tensor& ids, const at::Tensor& rows) {
  constexpr int64_t kColumns = 64;  // of a task: a cache line or more
  const int64_t hidden = rows.size(1), num_tokens = rows.size(0);
  const int64_t* id = ops::raw<int64_t>(ids);
  float* to = ops::mutable_raw<float>(sum);
  ops::with_element_type(rows.scalar_type(), [&]<typename T>(T) {
    const T* from = ops::raw<T>(rows);
    at::parallel_for(0, (hidden + kColumns - 1) / kColumns, 1, [&](int64_t first, int64_t last) {
      const int64_t begin = first * kColumns, size = std::min(last * kColumns, hidden) - begin;
      for (int64_t t = 0; t < num_tokens; ++t) {
        ops::cpu::accumulate(to + id[t] * hidden + begin, from + t * hidden + begin, size);
      }
    });
  });
}

}  // namespace

TokenEmbedding::TokenEmbedding(std::string path, int64_t vocab, int64_t hidden)
    : Embedding(std::move(path)), table_(add_parameter("weight", {vocab, hidden}, {.sums_full_grad = true})) {}

at::Tensor TokenEmbedding::forward(const at::Tensor& ids_T) const {
  enter();
  return at::embedding(table_.value().detach(), ids_T);
}

void TokenEmbedding::add_gradient(const at::Tensor& ids_T, const at::Tensor& grad_TH) {
  if (!table_.trainable()) return;
  add_rows(table_.full_grad(), ids_T.contiguous(), grad_TH.contiguous());
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
