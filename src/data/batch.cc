// SPDX-License-Identifier: Apache-2.0
// As upstream, a rank takes whole loader batches (micro_batch_size * num_micro_batch samples) off its order and drops
// samples without a target only then. The epoch ends on all ranks with the first one that cannot fill a step.
#include "data/batch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "data/sampler.h"
#include "data/token_budget.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::make_error;

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

int64_t samples_per_step(const LoaderOptions& options) {
  return int64_t{options.micro_batch_size} * options.num_micro_batch;
}

}  // namespace

BatchLoader::BatchLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  EXPERTMESH_CHECK(options_.micro_batch_size >= 1 && options_.num_micro_batch >= 1 && options_.cutoff_len >= 1);
  const int64_t samples = samples_per_rank(dataset_->size(), options_.dp_size);
  const int64_t per_step = samples_per_step(options_);
  steps_per_epoch_ = is_dynamic() ? (samples + per_step - 1) / per_step : samples / per_step;
  if (steps_per_epoch_ > 0) return;
  if (is_dynamic()) {
    throw make_error(Code::kData, "data/batch", "{} samples for {} data-parallel ranks: each needs at least one",
                     dataset_->size(), options_.dp_size)
        .hint("Give more rows, or use fewer ranks.");
  }
  throw make_error(Code::kData, "data/batch",
                   "{} samples give no full step: {} data-parallel ranks x {} micro batches x {} samples need {}",
                   dataset_->size(), options_.dp_size, options_.num_micro_batch, options_.micro_batch_size,
                   options_.dp_size * per_step)
      .hint("Give more rows, or lower global_batch_size or micro_batch_size.");
}

int64_t BatchLoader::steps_of(const std::vector<int64_t>& order) const {
  if (is_dynamic()) return order.empty() ? 0 : kEndless;
  return static_cast<int64_t>(order.size()) / samples_per_step(options_);
}

BatchLoader::Plan BatchLoader::plan_epoch(int64_t epoch) const {
  const std::vector<int64_t> permutation = epoch_permutation(dataset_->size(), options_.seed, epoch, options_.shuffle);
  Plan plan;
  plan.steps = kEndless;
  for (int rank = 0; rank < options_.dp_size; ++rank) {
    std::vector<int64_t> order = rank_order(permutation, options_.dp_size, rank);
    if (!is_dynamic()) order.resize(static_cast<size_t>(steps_per_epoch_ * samples_per_step(options_)));
    std::erase_if(order, [&](int64_t i) { return dataset_->is_dropped(i); });
    plan.steps = std::min(plan.steps, steps_of(order));
    plan.has_target =
        plan.has_target || std::ranges::any_of(order, [&](int64_t i) { return dataset_->targets(i) > 0; });
    if (rank == options_.dp_rank) plan.order = std::move(order);
  }
  return plan;
}

int64_t BatchLoader::steps_in_epoch(int64_t epoch) const {
  return epoch == planned_epoch_ ? plan_.steps : plan_epoch(epoch).steps;
}

void BatchLoader::enter_epoch(int64_t epoch) {
  if (planned_epoch_ == epoch) return;
  plan_ = plan_epoch(epoch);
  planned_epoch_ = epoch;
  position_ = 0;
  if (!is_dynamic()) return;
  if (!plan_.has_target) {
    // What the division by ranks leaves over never comes up: all steps of the run would be skipped.
    throw make_error(Code::kData, "data/batch",
                     "{} reads the same {} of {} samples in every pass, and none of them has a target",
                     config::choice_name(options_.strategy),
                     samples_per_rank(dataset_->size(), options_.dp_size) * options_.dp_size, dataset_->size())
        .hint("Give more rows, raise cutoff_len, or take another seed or number of ranks.");
  }
  warn_of_repeats_in_a_step();
}

void BatchLoader::warn_of_repeats_in_a_step() const {
  int64_t tokens = 0;
  for (const int64_t i : plan_.order) tokens += dataset_->length(i);
  if (options_.dp_rank != 0 || tokens >= budget_tokens() * options_.num_micro_batch) return;
  base::log_warn(
      "the {} tokens of a rank's samples do not fill the {} micro batches of up to {} tokens (cutoff_len {} x "
      "micro_batch_size {}) of a step: samples repeat within it",
      tokens, options_.num_micro_batch, budget_tokens(), options_.cutoff_len, options_.micro_batch_size);
}

void BatchLoader::restore(const LoaderState& state) {
  EXPERTMESH_CHECK(state.epoch >= 0 && state.step >= 0, "epoch {} step {}", state.epoch, state.step);
  next_ = state;
  last_epoch_ = state.epoch;
  if (!is_dynamic()) return;
  EXPERTMESH_CHECK(state.epoch == 0, "epoch {} of {}", state.epoch, config::choice_name(options_.strategy));
  planned_epoch_ = -1;
  enter_epoch(0);
  for (int64_t done = 0; done < state.step * options_.num_micro_batch; ++done) take_by_budget();
}

std::vector<int64_t> BatchLoader::take_by_count() {
  const auto begin = plan_.order.begin() + position_;
  position_ += options_.micro_batch_size;
  return {begin, begin + options_.micro_batch_size};
}

std::vector<int64_t> BatchLoader::take_by_budget() {
  TokenBudget budget(config::is_packed(options_.strategy), budget_tokens());
  std::vector<int64_t> samples;
  while (!budget.is_closed()) {
    const int64_t sample = plan_.order[static_cast<size_t>(position_) % plan_.order.size()];
    const int64_t length = dataset_->length(sample);
    EXPERTMESH_CHECK(length > 0, "sample {} has no tokens: the micro batch would never be full", sample);
    if (!budget.try_take(length)) break;
    samples.push_back(sample);
    ++position_;
  }
  return samples;
}

MicroBatch BatchLoader::make_micro_batch(std::vector<int64_t> samples) const {
  std::vector<Sample> contents;
  contents.reserve(samples.size());
  for (const int64_t i : samples) contents.push_back(dataset_->sample(i));
  MicroBatch batch = config::is_packed(options_.strategy) ? pack(contents) : collate(contents);
  batch.samples = std::move(samples);
  return batch;
}

std::vector<MicroBatch> BatchLoader::next_step() {
  enter_epoch(next_.epoch);
  if (next_.step >= plan_.steps) {
    next_ = {next_.epoch + 1, 0};
    enter_epoch(next_.epoch);
  }
  if (plan_.steps == 0) {
    throw make_error(Code::kData, "data/batch",
                     "epoch {} has no full step: {} of {} samples are dropped because cutoff_len leaves them no target",
                     next_.epoch, dataset_->summary().dropped, dataset_->size())
        .hint("Raise cutoff_len, give more rows, or lower global_batch_size.");
  }
  if (!is_dynamic()) position_ = next_.step * samples_per_step(options_);
  std::vector<MicroBatch> step;
  for (int micro = 0; micro < options_.num_micro_batch; ++micro) {
    step.push_back(make_micro_batch(is_dynamic() ? take_by_budget() : take_by_count()));
  }
  last_epoch_ = next_.epoch;
  ++next_.step;
  return step;
}

}  // namespace expertmesh::data
