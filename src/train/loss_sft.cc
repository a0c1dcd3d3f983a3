// SPDX-License-Identifier: Apache-2.0
#include "train/loss_sft.h"

namespace expertmesh::train {
namespace {

class SftLoss : public Loss {
 public:
  double weight(const data::MicroBatch& batch) const override { return batch.target_weight; }

  LossShare compute(model::Head& head, const model::Runtime& runtime, const at::Tensor& hidden_TH,
                    const model::TokenBatch& batch, double normaliser) const override {
    const auto result = head.loss(hidden_TH, batch, runtime, 1.0 / normaliser, /*with_gradient=*/true);
    return {result.loss, result.grad_hidden_TH};
  }
};

}  // namespace

std::unique_ptr<Loss> make_sft_loss() { return std::make_unique<SftLoss>(); }

}  // namespace expertmesh::train
