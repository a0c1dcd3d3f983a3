// SPDX-License-Identifier: Apache-2.0
#include "train/step.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "base/fault.h"
#include "base/trace.h"
#include "shard/gradient_norm.h"
#include "train/token_batch.h"

namespace expertmesh::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct StepTotals {
  double weight = 0;  // N
  int64_t tokens = 0;
};

// N and the tokens of the whole step. Counts are exact: fp64 holds integers to 2^53.
StepTotals agree_on_totals(ShardedModel& model, const Loss& loss, const std::vector<data::MicroBatch>& micro_batches) {
  std::array<double, 2> totals{};
  for (const data::MicroBatch& batch : micro_batches) {
    totals[0] += loss.weight(batch);
    totals[1] += static_cast<double>(batch.tokens);
  }
  // Ranks of one cp group read the same samples: the sum runs over dp.
  model.meshes().dp().all_reduce({{totals.data(), 2, comm::DType::kF64}}, comm::ReduceOp::kSum, "step totals");
  return {totals[0], static_cast<int64_t>(totals[1])};
}

void tell(const StepOptions& options, int micro_batch) {
  if (options.ledger != nullptr) options.ledger->set_step(options.step, micro_batch);
}

// Micro-batches forward and back one by one, in their order. With a balance loss its gradient needs the loads of the
// whole step before the first backward: the last micro-batch comes first, its forward completes the loads, and those
// before it were run forward once more, only to be routed.
class MicroBatches {
 public:
  MicroBatches(ShardedModel& model, LayerWalk& walk, const std::vector<data::MicroBatch>& batches,
               const StepOptions& options)
      : model_(model), walk_(walk), batches_(batches), options_(options), routings_(batches.size()) {
    if (options.balance.coefficient <= 0) return;
    const auto num_layers = static_cast<int64_t>(model.layers().size());
    balance_ =
        std::make_unique<moe::BalanceSums>(model.model().sizes().experts, options.balance.is_by_layer ? num_layers : 1);
  }

  // This rank's share of the loss.
  double run(const Loss& loss, double normaliser) {
    std::vector<size_t> order(batches_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (balance_ != nullptr) {
      std::rotate(order.begin(), order.end() - 1, order.end());
      for (size_t i = 0; i + 1 < batches_.size(); ++i) routings_[i] = walk_.route(enter(i), *balance_);
    }
    double share = 0;
    for (const size_t i : order) share += run_one(i, loss, normaliser, i == order.back());
    return share;
  }

  double balance_loss() const { return balance_ == nullptr ? 0.0 : balance_->loss(); }

 private:
  model::TokenBatch enter(size_t index) const {
    tell(options_, static_cast<int>(index));
    return make_token_batch(batches_[index]);
  }

  double run_one(size_t index, const Loss& loss, double normaliser, bool is_last) {
    const base::Span span("micro-batch", base::SpanKind::kScope, static_cast<int64_t>(index));
    const model::TokenBatch batch = enter(index);
    const at::Tensor hidden_TH = walk_.forward(batch, balance_.get(), std::move(routings_[index]));
    if (balance_ != nullptr && !balance_grad_GE_.defined()) agree_on_balance();
    EXPERTMESH_FAULT_POINT("train.loss");
    LossShare result = loss_of(loss, hidden_TH, batch, normaliser);
    if (base::fault_wants_nan("train.loss", "loss")) result.value = kNaN;
    // The backward needs no weight of the root: its memory is there for gradients.
    if (is_last) model_.root().reshard();
    walk_.backward(result.grad_hidden_TH, balance_grad_GE_);
    return result.value;
  }

  LossShare loss_of(const Loss& loss, const at::Tensor& hidden_TH, const model::TokenBatch& batch, double normaliser) {
    const base::Span span("loss", base::SpanKind::kScope);
    return loss.compute(model_.model().head(), model_.runtime(), hidden_TH, batch, normaliser);
  }

  void agree_on_balance() {
    const std::span<double> values = balance_->values();
    model_.meshes().world().all_reduce({{values.data(), static_cast<int64_t>(values.size()), comm::DType::kF64}},
                                       comm::ReduceOp::kSum, "router load");
    balance_grad_GE_ = at::tensor(balance_->gradient(options_.balance.coefficient))
                           .view({static_cast<int64_t>(balance_->num_groups()), -1});
  }

  ShardedModel& model_;
  LayerWalk& walk_;
  const std::vector<data::MicroBatch>& batches_;
  const StepOptions& options_;
  std::vector<Routings> routings_;
  std::unique_ptr<moe::BalanceSums> balance_;  // nullptr: there is no balance loss
  at::Tensor balance_grad_GE_;
};

void poison_gradients_where_asked(const std::vector<shard::Parameter*>& parameters) {
  for (shard::Parameter* parameter : parameters) {
    if (parameter->trainable() && parameter->local_numel() > 0 &&
        base::fault_wants_nan("train.gradient", parameter->name())) {
      parameter->grad().mutable_data_ptr<float>()[0] = static_cast<float>(kNaN);
    }
  }
}

// The loss of all ranks, and the first rank whose share is not finite (-1: none).
std::pair<double, int> agree_on_loss(comm::Group& world, double share) {
  double loss = share;
  double bad_rank = std::isfinite(share) ? world.size() : world.rank();
  world.all_reduce({{&loss, 1, comm::DType::kF64}}, comm::ReduceOp::kSum, "loss");
  world.all_reduce({{&bad_rank, 1, comm::DType::kF64}}, comm::ReduceOp::kMin, "first non-finite loss");
  return {loss, bad_rank < world.size() ? static_cast<int>(bad_rank) : -1};
}

}  // namespace

BalanceOptions balance_options(const config::ModelConfig& config) {
  return {.coefficient = config.router_aux_loss_coef, .is_by_layer = config.moe_aux_loss == config::AuxLoss::kLayer};
}

StepResult train_step(ShardedModel& model, LayerWalk& walk, const Loss& loss, Optimizer& optimizer,
                      const std::vector<data::MicroBatch>& micro_batches, const StepOptions& options) {
  comm::Group& world = model.meshes().world();
  const auto& parameters = model.parameters();
  tell(options, -1);
  const StepTotals totals = agree_on_totals(model, loss, micro_batches);
  StepResult result;
  result.tokens = totals.tokens;
  if (totals.weight <= 0) {
    result.is_applied = false;
    result.skip_reason = "no token of the step is supervised";
    return result;
  }

  for (shard::Parameter* parameter : parameters) parameter->clear_grad();
  MicroBatches runs(model, walk, micro_batches, options);
  const double share = runs.run(loss, totals.weight);
  result.balance_loss = runs.balance_loss();
  tell(options, -1);
  EXPERTMESH_FAULT_POINT("train.reduce");
  model.finish_gradients();
  poison_gradients_where_asked(parameters);

  const auto [total_loss, bad_rank] = agree_on_loss(world, share);
  const shard::GradientNorm norm = shard::global_gradient_norm(parameters, world);
  result.loss = total_loss;
  result.grad_norm = norm.norm;
  result.expert_norm = norm.expert_norm;
  if (bad_rank >= 0 || !norm.is_finite) {
    result.is_applied = false;
    result.is_nonfinite = true;
    result.nonfinite_rank = bad_rank >= 0 ? bad_rank : norm.non_finite_rank;
    result.skip_reason = bad_rank >= 0 ? fmt::format("the loss on rank {} is not finite", bad_rank)
                                       : fmt::format("the {} is not finite", norm.first_non_finite);
    model.reshard_all();
    return result;
  }
  result.clip_coefficient = shard::clip_coefficient(norm.norm, options.max_grad_norm);
  EXPERTMESH_FAULT_POINT("train.update");
  optimizer.step(options.learning_rate, result.clip_coefficient);
  model.reshard_all();
  return result;
}

}  // namespace expertmesh::train
