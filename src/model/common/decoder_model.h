// SPDX-License-Identifier: Apache-2.0
// What decoder models have in common: an embedding, layers, a head, and the table of their weights. A model gives its
// numbers and makes its layers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/common/embedding.h"
#include "model/model.h"

namespace expertmesh::model {

struct DecoderOptions {
  std::string prefix = "model";  // of embedding, layers and final norm; the head is `lm_head`
  NormOptions norm;              // the final one
  bool tied_embeddings = false;
  Model::Sizes sizes;  // all but moe_layers, which is counted
  // In which layouts experts may be stored, the usual one first, and what a checkpoint holds beside the model.
  std::vector<std::string> expert_layouts = {"split", "fused"};
  std::vector<std::string> pass_through{};
};

class DecoderModel : public Model {
 public:
  // Layer `index` with the full name `path`.
  using MakeLayer = std::function<std::unique_ptr<DecoderLayer>(const std::string& path, int64_t index)>;

  DecoderModel(DecoderOptions options, const MakeLayer& make_layer);

  Embedding& embedding() override { return embedding_; }
  std::vector<DecoderLayer*> layers() override;
  Head& head() override { return head_; }
  bool tied_embeddings() const override { return options_.tied_embeddings; }
  Sizes sizes() const override { return options_.sizes; }
  const ckpt::WeightTable& weight_table() const override { return weight_table_; }

 private:
  // Each parameter is stored under its own name; experts split or fused.
  void fill_weight_table();

  DecoderOptions options_;
  TokenEmbedding embedding_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  LanguageModelHead head_;
  ckpt::WeightTable weight_table_;
};

}  // namespace expertmesh::model
