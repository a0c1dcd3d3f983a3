// SPDX-License-Identifier: Apache-2.0
// As upstream, a rank takes whole loader batches (micro_batch_size * num_micro_batch samples) off its order and drops
// samples without a target only then. The epoch ends on all ranks with the first one that cannot fill a step.
#include "data/batch.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "data/sampler.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

int64_t samples_per_step(const LoaderOptions& options) {
  return int64_t{options.micro_batch_size} * options.num_micro_batch;
}

}  // namespace

MicroBatch collate(const std::vector<Sample>& samples) {
  MicroBatch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  for (const Sample& sample : samples) {
    batch.width = std::max(batch.width, static_cast<int64_t>(sample.input_ids.size()));
  }
  const auto cells = static_cast<size_t>(batch.rows * batch.width);
  batch.input_ids.assign(cells, 0);
  batch.labels.assign(cells, kIgnoredLabel);
  batch.loss_weights.assign(cells, 0.0F);
  for (size_t row = 0; row < samples.size(); ++row) {
    const Sample& sample = samples[row];
    const auto begin = static_cast<ptrdiff_t>(row * static_cast<size_t>(batch.width));
    std::ranges::copy(sample.input_ids, batch.input_ids.begin() + begin);
    std::ranges::copy(sample.labels, batch.labels.begin() + begin);
    std::ranges::copy(sample.loss_weights, batch.loss_weights.begin() + begin);
    batch.lengths.push_back(static_cast<int32_t>(sample.input_ids.size()));
    batch.tokens += static_cast<int64_t>(sample.input_ids.size());
    for (size_t t = 1; t < sample.labels.size(); ++t) {
      if (sample.labels[t] == kIgnoredLabel) continue;
      ++batch.targets;
      batch.target_weight += sample.loss_weights[t];
      batch.unit_weights &= sample.loss_weights[t] == 1.0F;
    }
  }
  return batch;
}

BatchLoader::BatchLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  EXPERTMESH_CHECK(options_.micro_batch_size >= 1 && options_.num_micro_batch >= 1);
  steps_per_epoch_ = samples_per_rank(dataset_->size(), options_.dp_size) / samples_per_step(options_);
  if (steps_per_epoch_ == 0) {
    throw make_error(Code::kData, "data/batch",
                     "{} samples give no full step: {} data-parallel ranks x {} micro batches x {} samples need {}",
                     dataset_->size(), options_.dp_size, options_.num_micro_batch, options_.micro_batch_size,
                     options_.dp_size * samples_per_step(options_))
        .hint("Give more rows, or lower global_batch_size or micro_batch_size.");
  }
}

BatchLoader::Plan BatchLoader::plan_epoch(int64_t epoch) const {
  const std::vector<int64_t> permutation = epoch_permutation(dataset_->size(), options_.seed, epoch, options_.shuffle);
  const int64_t per_step = samples_per_step(options_);
  Plan plan;
  plan.steps = steps_per_epoch_;
  for (int rank = 0; rank < options_.dp_size; ++rank) {
    std::vector<int64_t> order = rank_order(permutation, options_.dp_size, rank);
    order.resize(static_cast<size_t>(steps_per_epoch_ * per_step));
    std::erase_if(order, [&](int64_t i) { return dataset_->is_dropped(i); });
    plan.steps = std::min(plan.steps, static_cast<int64_t>(order.size()) / per_step);
    if (rank == options_.dp_rank) plan.order = std::move(order);
  }
  return plan;
}

int64_t BatchLoader::steps_in_epoch(int64_t epoch) const {
  return epoch == planned_epoch_ ? plan_.steps : plan_epoch(epoch).steps;
}

void BatchLoader::restore(const LoaderState& state) {
  EXPERTMESH_CHECK(state.epoch >= 0 && state.step >= 0, "epoch {} step {}", state.epoch, state.step);
  next_ = state;
  last_epoch_ = state.epoch;
}

std::vector<MicroBatch> BatchLoader::next_step() {
  const auto plan = [&] {
    if (planned_epoch_ == next_.epoch) return;
    plan_ = plan_epoch(next_.epoch);
    planned_epoch_ = next_.epoch;
  };
  plan();
  if (next_.step >= plan_.steps) {
    next_ = {next_.epoch + 1, 0};
    plan();
  }
  if (plan_.steps == 0) {
    throw make_error(Code::kData, "data/batch",
                     "epoch {} has no full step: {} of {} samples are dropped because cutoff_len leaves them no target",
                     next_.epoch, dataset_->summary().dropped, dataset_->size())
        .hint("Raise cutoff_len, give more rows, or lower global_batch_size.");
  }
  std::vector<MicroBatch> step;
  auto at = static_cast<size_t>(next_.step * samples_per_step(options_));
  for (int micro = 0; micro < options_.num_micro_batch; ++micro) {
    std::vector<Sample> samples;
    std::vector<int64_t> indices;
    for (int i = 0; i < options_.micro_batch_size; ++i) {
      indices.push_back(plan_.order[at++]);
      samples.push_back(dataset_->sample(indices.back()));
    }
    step.push_back(collate(samples));
    step.back().samples = std::move(indices);
  }
  last_epoch_ = next_.epoch;
  ++next_.step;
  return step;
}

}  // namespace expertmesh::data
