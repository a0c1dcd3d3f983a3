// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

namespace expertmesh::train {
namespace {

std::unique_ptr<shard::Parameter> weight(double value, at::ScalarType dtype, int64_t count = 5) {
  auto parameter = std::make_unique<shard::Parameter>("w", std::vector<int64_t>{count}, shard::Parameter::Options{});
  parameter->materialize(dtype);
  parameter->local().fill_(value);
  return parameter;
}

void step(Optimizer& optimizer, shard::Parameter& parameter, double lr, double gradient, double scale = 1.0) {
  parameter.ensure_grad();
  parameter.grad().fill_(gradient);
  optimizer.step(lr, scale);
  parameter.clear_grad();
}

double value_of(const shard::Parameter& parameter) { return parameter.local().to(at::kDouble)[0].item<double>(); }

// OPT-05: decay applies to every tensor, also with zero gradients.
TEST(AdamW, DecaysWithoutGradient) {
  const auto w = weight(2.0, at::kFloat);
  config::OptimConfig config;
  config.weight_decay = 0.1;
  const auto optimizer = make_optimizer(config, {w.get()});
  for (int i = 0; i < 3; ++i) step(*optimizer, *w, 0.01, 0.0);
  EXPECT_NEAR(value_of(*w), 1.994006, 1e-6);
  EXPECT_EQ(optimizer->updates(), 3);
}

TEST(AdamW, EqualsTorchWithDefaults) {
  const auto w = weight(2.0, at::kFloat, 37);
  const auto optimizer = make_optimizer({}, {w.get()});
  const double gradients[] = {0.5, -0.25, 1e-6}, expected[] = {1.99898, 1.99869367, 1.99846781};
  for (int i = 0; i < 3; ++i) {
    step(*optimizer, *w, 1e-3, gradients[i]);
    EXPECT_NEAR(value_of(*w), expected[i], 1e-6);
  }
}

// OPT-01: updates smaller than bf16's step add up in the master.
TEST(Sgd, KeepsAnFp32MasterOfBf16Weights) {
  config::OptimConfig config;
  config.optimizer = config::Optimizer::kSgd;
  config.weight_decay = 0;
  const auto w = weight(1.0, at::kBFloat16);
  const auto optimizer = make_optimizer(config, {w.get()});
  for (int i = 0; i < 10; ++i) step(*optimizer, *w, 1.0, 1e-3);
  EXPECT_EQ(value_of(*w), 0.98828125);

  config.master_weights = config::MasterWeights::kNone;
  const auto plain = weight(1.0, at::kBFloat16);
  const auto without = make_optimizer(config, {plain.get()});
  for (int i = 0; i < 10; ++i) step(*without, *plain, 1.0, 1e-3);
  EXPECT_EQ(value_of(*plain), 1.0);
}

TEST(Sgd, AppliesMomentumAndTheClippingCoefficient) {
  config::OptimConfig config;
  config.optimizer = config::Optimizer::kSgd;
  config.weight_decay = 0;
  config.momentum = 0.5;
  const auto w = weight(0.0, at::kFloat);
  const auto optimizer = make_optimizer(config, {w.get()});
  step(*optimizer, *w, 1.0, 2.0, 0.5);  // buf 1, w -1
  step(*optimizer, *w, 1.0, 2.0, 0.5);  // buf 1.5, w -2.5
  EXPECT_DOUBLE_EQ(value_of(*w), -2.5);
}

TEST(Optimizer, LeavesFrozenParametersAlone) {
  const auto w = weight(1.0, at::kFloat);
  auto frozen = std::make_unique<shard::Parameter>("f", std::vector<int64_t>{3}, shard::Parameter::Options{});
  frozen->set_trainable(false);
  frozen->materialize(at::kFloat);
  frozen->local().fill_(7.0);
  const auto optimizer = make_optimizer({}, {w.get(), frozen.get()});
  step(*optimizer, *w, 0.1, 1.0);
  EXPECT_EQ(value_of(*frozen), 7.0);
  EXPECT_EQ(optimizer->state_bytes(), 5 * 8);
}

TEST(Optimizer, StateBytesFollowTheStorage) {
  const auto a = weight(1.0, at::kBFloat16), b = weight(1.0, at::kBFloat16);
  config::OptimConfig config;
  EXPECT_EQ(make_optimizer(config, {a.get()})->state_bytes(), 5 * (2 + 4 + 4));
  config.master_weights = config::MasterWeights::kNone;
  EXPECT_EQ(make_optimizer(config, {b.get()})->state_bytes(), 5 * (2 + 2));
}

}  // namespace
}  // namespace expertmesh::train
