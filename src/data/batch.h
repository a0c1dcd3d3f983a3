// SPDX-License-Identifier: Apache-2.0
// Which samples make a step (spec 3.3). Every rank gives num_micro_batch micro batches a step, whatever is in them, so
// ranks stay in step without talking to each other:
//   normal                micro_batch_size samples each, padded
//   padding_free          the same samples, packed
//   dynamic_batching      samples in order while they fit a budget of cutoff_len * micro_batch_size tokens, padded
//   dynamic_padding_free  the same for packed ones
// The first two read an epoch's order once. Every rank knows the whole index, so all end the epoch at the same step;
// what fills no step is left out until the next epoch, which has an order of its own. The dynamic two know no end of an
// epoch: each rank reads its share of epoch 0's order over and over, at its own pace. One pass follows the other
// without a gap, so a micro batch may hold the last samples of one and the first of the next. Threads: one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/choices.h"
#include "data/dataset.h"
#include "data/micro_batch.h"

namespace expertmesh::data {

struct LoaderOptions {
  int dp_rank = 0;
  int dp_size = 1;
  int micro_batch_size = 1;
  int num_micro_batch = 1;
  uint64_t seed = 42;
  bool shuffle = true;
  config::BatchingStrategy strategy = config::BatchingStrategy::kNormal;
  int cutoff_len = 2048;  // of the Dataset; a factor of the token budget
};

// Where a loader stands: the step `step` of `epoch` is the next one. The same on all ranks; a rank's place in its order
// follows from it.
struct LoaderState {
  int64_t epoch = 0;
  int64_t step = 0;
  bool operator==(const LoaderState&) const = default;
};

class BatchLoader {
 public:
  // Errors: kData where no rank layout gives a full step.
  BatchLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  // The micro batches of the next step; goes on into the next epoch by itself. Errors: kData for an epoch without
  // steps, and for a dynamic strategy that would never meet a target.
  std::vector<MicroBatch> next_step();
  // The epoch of the step that next_step returned last; 0 with the dynamic strategies.
  int64_t epoch() const { return last_epoch_; }
  // Upstream's length of an epoch: does not know about dropped samples, so an epoch may be shorter, nor about budgets.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Steps that the epoch really has, equal on all ranks; the largest number with the dynamic strategies.
  int64_t steps_in_epoch(int64_t epoch) const;

  LoaderState state() const { return next_; }
  // With a dynamic strategy the lengths of all samples before `state` are gone through again.
  void restore(const LoaderState& state);

 private:
  struct Plan {
    std::vector<int64_t> order;  // this rank's samples that are trained on
    int64_t steps = 0;
    bool has_target = false;  // of any rank
  };
  bool is_dynamic() const { return config::is_dynamic(options_.strategy); }
  int64_t budget_tokens() const { return int64_t{options_.cutoff_len} * options_.micro_batch_size; }
  int64_t steps_of(const std::vector<int64_t>& order) const;
  Plan plan_epoch(int64_t epoch) const;
  void enter_epoch(int64_t epoch);
  void warn_of_repeats_in_a_step() const;
  std::vector<int64_t> take_by_count();
  std::vector<int64_t> take_by_budget();
  MicroBatch make_micro_batch(std::vector<int64_t> samples) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t steps_per_epoch_ = 0;
  LoaderState next_;
  int64_t last_epoch_ = 0;
  int64_t planned_epoch_ = -1;
  Plan plan_;
  int64_t position_ = 0;  // of the next sample in plan_.order, counted on over its passes
};

}  // namespace expertmesh::data
