// SPDX-License-Identifier: Apache-2.0
#include "train/step.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/fault.h"
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

double run_micro_batches(ShardedModel& model, LayerWalk& walk, const Loss& loss,
                         const std::vector<data::MicroBatch>& micro_batches, double normaliser,
                         const StepOptions& options) {
  double share = 0;
  for (const data::MicroBatch& micro_batch : micro_batches) {
    tell(options, static_cast<int>(&micro_batch - micro_batches.data()));
    const model::TokenBatch batch = make_token_batch(micro_batch);
    const at::Tensor hidden_TH = walk.forward(batch);
    EXPERTMESH_FAULT_POINT("train.loss");
    LossShare result = loss.compute(model.model().head(), model.runtime(), hidden_TH, batch, normaliser);
    if (base::fault_wants_nan("train.loss", "loss")) result.value = kNaN;
    share += result.value;
    // The backward needs no weight of the root: its memory is there for gradients.
    if (&micro_batch == &micro_batches.back()) model.root().reshard();
    walk.backward(result.grad_hidden_TH);
  }
  return share;
}

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
  const double share = run_micro_batches(model, walk, loss, micro_batches, totals.weight, options);
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
