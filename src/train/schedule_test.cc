// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

namespace expertmesh::train {
namespace {

config::ScheduleConfig schedule(config::Schedule kind, int64_t warmup, double min_ratio = 0.0) {
  config::ScheduleConfig config;
  config.schedule = kind;
  config.warmup_steps = warmup;
  config.min_lr_ratio = min_ratio;
  return config;
}

TEST(LearningRate, ConstantRisesAndStays) {
  const LearningRate rate(schedule(config::Schedule::kConstant, 4), 2.0, 10);
  EXPECT_DOUBLE_EQ(rate.at(0), 0.0);
  EXPECT_DOUBLE_EQ(rate.at(1), 0.5);
  EXPECT_DOUBLE_EQ(rate.at(4), 2.0);
  EXPECT_DOUBLE_EQ(rate.at(10), 2.0);
}

TEST(LearningRate, LinearFallsToItsMinimum) {
  const LearningRate rate(schedule(config::Schedule::kLinear, 2, 0.1), 1.0, 12);
  EXPECT_DOUBLE_EQ(rate.at(2), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(7), 0.55);
  EXPECT_DOUBLE_EQ(rate.at(12), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(100), 0.1);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddle) {
  const LearningRate rate(schedule(config::Schedule::kCosine, 0, 0.2), 1.0, 8);
  EXPECT_DOUBLE_EQ(rate.at(0), 1.0);
  EXPECT_NEAR(rate.at(4), 0.6, 1e-12);
  EXPECT_NEAR(rate.at(8), 0.2, 1e-12);
}

TEST(LearningRate, WarmupRatioIsOfAllSteps) {
  config::ScheduleConfig config = schedule(config::Schedule::kConstant, 0);
  config.warmup_ratio = 0.25;
  const LearningRate rate(config, 1.0, 10);  // ceil(2.5) = 3 steps
  EXPECT_NEAR(rate.at(1), 1.0 / 3.0, 1e-12);
  EXPECT_DOUBLE_EQ(rate.at(3), 1.0);
}

TEST(LearningRate, MovesOnlyWithUpdates) {
  LearningRate rate(schedule(config::Schedule::kLinear, 0), 1.0, 4);
  EXPECT_DOUBLE_EQ(rate.current(), 1.0);
  EXPECT_DOUBLE_EQ(rate.current(), 1.0);  // a skipped step
  rate.advance();
  EXPECT_DOUBLE_EQ(rate.current(), 0.75);
}

}  // namespace
}  // namespace expertmesh::train
