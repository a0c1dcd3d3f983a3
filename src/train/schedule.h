// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: a multiplier of learning_rate by the number of updates made so far.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace expertmesh::train {

class LearningRate {
 public:
  LearningRate(const config::ScheduleConfig& config, double base_rate, int64_t total_steps);

  // The rate of the next update. Skipped steps do not count as updates.
  double current() const { return at(updates_); }
  // After `updates` updates: rises linearly from 0 through the warm-up, then constant, or down to min_lr_ratio at
  // total_steps along a line or half a cosine.
  double at(int64_t updates) const;
  void advance() { ++updates_; }
  int64_t updates() const { return updates_; }

 private:
  config::Schedule schedule_;
  double base_rate_, min_ratio_;
  int64_t total_steps_, warmup_steps_;
  int64_t updates_ = 0;
};

}  // namespace expertmesh::train
