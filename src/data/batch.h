// SPDX-License-Identifier: Apache-2.0
// Batches of strategy `normal` (spec 3.3): a step is num_micro_batch micro batches of micro_batch_size samples, padded
// on the right to the longest of the micro batch. Every rank knows the whole index, so all end an epoch at the same
// step without talking to each other. Threads: one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/dataset.h"

namespace expertmesh::data {

// Row-major [rows, width] arrays. Padding: id 0, label -100, weight 0.
struct MicroBatch {
  int64_t rows = 0, width = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
  std::vector<float> loss_weights;
  std::vector<int32_t> lengths;  // valid tokens of each row
  std::vector<int64_t> samples;  // index in the Dataset of each row
  int64_t tokens = 0;            // valid ones
  int64_t targets = 0;           // supervised labels after the shift (position 0 of a row has no target)
  double target_weight = 0;      // their loss weights summed
  bool unit_weights = true;      // every target weighs 1
};

// Pads samples to one micro batch.
MicroBatch collate(const std::vector<Sample>& samples);

struct LoaderOptions {
  int dp_rank = 0;
  int dp_size = 1;
  int micro_batch_size = 1;
  int num_micro_batch = 1;
  uint64_t seed = 42;
  bool shuffle = true;
};

// Where a loader stands: the step `step` of `epoch` is the next one.
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
  // steps.
  std::vector<MicroBatch> next_step();
  // The epoch of the step that next_step returned last.
  int64_t epoch() const { return last_epoch_; }
  // Upstream's length of an epoch: does not know about dropped samples, so an epoch may be shorter.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Steps that the epoch really has, equal on all ranks.
  int64_t steps_in_epoch(int64_t epoch) const;

  LoaderState state() const { return next_; }
  void restore(const LoaderState& state);

 private:
  struct Plan {
    std::vector<int64_t> order;  // this rank's samples that are trained on
    int64_t steps = 0;
  };
  Plan plan_epoch(int64_t epoch) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  int64_t steps_per_epoch_ = 0;
  LoaderState next_;
  int64_t last_epoch_ = 0;
  int64_t planned_epoch_ = -1;
  Plan plan_;
};

}  // namespace expertmesh::data
