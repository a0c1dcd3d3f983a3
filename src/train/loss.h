// SPDX-License-Identifier: Apache-2.0
// What a training stage minimises. A stage turns a micro-batch's last hidden states into its share of the step's loss
// and the gradient of the hidden states; everything else of a step is the same for all stages.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "data/batch.h"
#include "model/model.h"

namespace expertmesh::train {

struct LossShare {
  double value = 0;           // this rank's share: all ranks' and micro-batches' shares sum to the step's loss
  at::Tensor grad_hidden_TH;  // undefined where nothing of the model is trained
};

class Loss {
 public:
  virtual ~Loss() = default;
  // What this micro-batch adds to the step's normaliser N (targets, or their summed weights; pairs).
  virtual double weight(const data::MicroBatch& batch) const = 0;
  // The share under the normaliser N of the whole step. Head gradients are added to its parameters.
  virtual LossShare compute(model::Head& head, const model::Runtime& runtime, const at::Tensor& hidden_TH,
                            const model::TokenBatch& batch, double normaliser) const = 0;
};

struct LossInfo {
  std::string_view stage;  // "sft"
  std::unique_ptr<Loss> (*make)();
};

// The table of stages: one row each.
std::span<const LossInfo> losses();
std::unique_ptr<Loss> make_loss(std::string_view stage);

}  // namespace expertmesh::train
