// SPDX-License-Identifier: Apache-2.0
// A model placed on the meshes: parameters are sharded (experts first, the rest second), allocated, and grouped into
// the units that are gathered and freed together. The walk over the layers is in layer_walk.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "config/config.h"
#include "model/model.h"
#include "model/registry.h"
#include "moe/measure.h"
#include "ops/operators.h"
#include "shard/placement.h"
#include "shard/unit.h"

namespace expertmesh::train {

struct ShardingOptions {
  config::DistConfig dist;
  bool bf16 = true;
  std::string debug_router;  // the rule as written; empty: off
  config::KernelConfig kernel;
  config::FlashAttention attention = config::FlashAttention::kSdpa;
  std::vector<std::string> trainable_modules;  // patterns; empty: everything
  int64_t micro_batch_tokens = 0;              // of a rank, at most: what the dispatcher `auto` measures with
};

class ShardedModel {
 public:
  // A layer's dense parameters, and its experts where they have a mesh of their own (nullptr otherwise).
  struct Layer {
    model::DecoderLayer* module = nullptr;
    std::unique_ptr<shard::Unit> dense, experts;
  };

  // Places and allocates; values are NaN until they are loaded. Throws kConfig for patterns that match nothing.
  ShardedModel(std::unique_ptr<model::Model> model, const model::ModelSpec& spec,
               std::shared_ptr<const comm::Meshes> meshes, const ShardingOptions& options);

  model::Model& model() { return *model_; }
  const comm::Meshes& meshes() const { return *meshes_; }
  const model::Runtime& runtime() const { return runtime_; }
  const std::vector<shard::Parameter*>& parameters() const { return parameters_; }
  const std::vector<Layer>& layers() const { return layers_; }
  // Embedding, final norm, head.
  shard::Unit& root() { return *root_; }
  bool reshard_after_forward() const { return reshard_after_forward_; }

  // Frees every gathered copy: after an update, or when a walk is over.
  void reshard_all();
  // Completes the step's gradients after its last micro-batch: what is summed once a step, and replicas.
  void finish_gradients();

 private:
  void choose_runtime(const ShardingOptions& options);
  moe::Contender choose_dispatcher(const ShardingOptions& options);
  void choose_trainable(const std::vector<std::string>& patterns);
  void place(const model::ModelSpec& spec, const config::DistConfig& dist);
  void make_units(const config::DistConfig& dist);
  void hook_experts(Layer& layer, const std::vector<std::string>& hook_modules);

  std::unique_ptr<model::Model> model_;
  std::shared_ptr<const comm::Meshes> meshes_;
  ops::Operators operators_;  // what runtime_ points to
  model::Runtime runtime_;
  shard::BufferPool pool_;
  shard::ParameterSet experts_;
  std::vector<shard::Parameter*> parameters_;
  std::vector<Layer> layers_;
  std::unique_ptr<shard::Unit> root_;
  bool reshard_after_forward_ = true;
};

}  // namespace expertmesh::train
