// SPDX-License-Identifier: Apache-2.0
// Token embedding, final norm and language-model head. With tied embeddings the head has no table of its own.
#pragma once

#include <string>

#include "model/common/layers.h"
#include "model/model.h"

namespace expertmesh::model {

class TokenEmbedding : public Embedding {
 public:
  TokenEmbedding(std::string path, int64_t vocab, int64_t hidden);
  at::Tensor forward(const at::Tensor& ids_T) const override;
  void add_gradient(const at::Tensor& ids_T, const at::Tensor& grad_TH) override;

  shard::Parameter& table() { return table_; }

 private:
  shard::Parameter& table_;  // [V, H]
};

class LanguageModelHead : public Head {
 public:
  // `tied`: the embedding's table; nullptr: an own one, `table_path`.weight.
  LanguageModelHead(const std::string& norm_path, const std::string& table_path, int64_t vocab, int64_t hidden,
                    const NormOptions& norm, shard::Parameter* tied);

  LossResult loss(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime, double scale,
                  bool with_gradient) override;
  at::Tensor logprobs(const at::Tensor& hidden_TH, const TokenBatch& batch, const Runtime& runtime) const override;
  at::Tensor logits(const at::Tensor& hidden_TH, const Runtime& runtime) const override;

 private:
  RmsNorm norm_;
  shard::Parameter* table_;  // own, or the embedding's
};

}  // namespace expertmesh::model
