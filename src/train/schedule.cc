// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace expertmesh::train {

LearningRate::LearningRate(const config::ScheduleConfig& config, double base_rate, int64_t total_steps)
    : schedule_(config.schedule),
      base_rate_(base_rate),
      min_ratio_(config.min_lr_ratio),
      total_steps_(total_steps),
      warmup_steps_(config.warmup_ratio ? static_cast<int64_t>(std::ceil(*config.warmup_ratio * total_steps))
                                        : config.warmup_steps) {}

double LearningRate::at(int64_t updates) const {
  if (updates < warmup_steps_) return base_rate_ * static_cast<double>(updates) / static_cast<double>(warmup_steps_);
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps_ - warmup_steps_));
  const double progress = std::min(1.0, static_cast<double>(updates - warmup_steps_) / span);
  double ratio = 1.0;
  switch (schedule_) {
    case config::Schedule::kConstant:
      return base_rate_;
    case config::Schedule::kLinear:
      ratio = 1.0 - progress;
      break;
    case config::Schedule::kCosine:
      ratio = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      break;
  }
  return base_rate_ * (min_ratio_ + (1.0 - min_ratio_) * ratio);
}

}  // namespace expertmesh::train
