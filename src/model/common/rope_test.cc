// SPDX-License-Identifier: Apache-2.0
#include "model/common/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace expertmesh::model {
namespace {

// tests/cases/values/rope.json
TEST(Rope, FrequenciesOfTheReference) {
  RopeConfig plain{.theta = 1e7, .dim = 8};
  const at::Tensor frequencies = inverse_frequencies(plain);
  const std::vector<double> expected = {1.0, 0.0177827941, 0.000316227766, 5.62341325e-06};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i].item<double>(), expected[i], 1e-6);

  RopeConfig yarn{.kind = RopeKind::kYarn, .theta = 1e4, .dim = 16, .factor = 4.0, .original_length = 32};
  const at::Tensor slowed = inverse_frequencies(yarn);
  const std::vector<double> expected_yarn = {1.0,    0.197642354,    0.025,   0.00790569415,
                                             0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
  for (size_t i = 0; i < expected_yarn.size(); ++i) EXPECT_NEAR(slowed[i].item<double>(), expected_yarn[i], 1e-6);

  RopeConfig linear{.kind = RopeKind::kLinear, .theta = 1e7, .dim = 8, .factor = 2.0};
  EXPECT_TRUE(inverse_frequencies(linear).equal(frequencies / 2.0));
}

at::Tensor positions_of(std::vector<int64_t> positions) { return at::tensor(positions, at::kLong); }

TEST(Rope, TablesGrowAndKeepTheirValues) {
  RotaryTables tables(RopeConfig{.theta = 1e4, .dim = 4, .attention_factor = 2.0});
  ASSERT_GE(tables.angles(positions_of({})).cos_PR.size(0), 1);
  const at::Tensor before = tables.angles(positions_of({0, 3})).cos_PR;
  const RotaryAngles angles = tables.angles(positions_of({5000}));
  ASSERT_GT(angles.cos_PR.size(0), 5000);
  EXPECT_TRUE(angles.cos_PR.narrow(0, 0, before.size(0)).equal(before));
  EXPECT_NEAR(angles.cos_PR[5000][1].item<double>(), 2.0 * std::cos(50.0), 1e-4);
  EXPECT_NEAR(angles.sin_PR[3][0].item<double>(), 2.0 * std::sin(3.0), 1e-6);
}

// Column r of three axes turns by the position on axis r % 3, as far as that axis has columns; the rest by the first.
TEST(Rope, ThreeAxesTurnTheirOwnColumns) {
  RotaryTables tables(RopeConfig{.theta = 1e2, .dim = 8}, {2, 1, 1});
  const at::Tensor positions_AT = positions_of({4, 5, 7, 8, 10, 11}).view({3, 2});
  const RotaryAngles angles = tables.angles(positions_of({0, 1}), positions_AT);
  ASSERT_EQ(angles.cos_PR.sizes(), (std::vector<int64_t>{2, 4}));
  const std::vector<std::vector<double>> turned_by = {{4, 7, 10, 4}, {5, 8, 11, 5}};
  for (int64_t t = 0; t < 2; ++t) {
    const int64_t row = angles.positions_T[t].item<int64_t>();
    for (int64_t r = 0; r < 4; ++r) {
      const double angle = turned_by[t][r] * std::pow(1e2, -static_cast<double>(r) / 4.0);
      EXPECT_NEAR(angles.cos_PR[row][r].item<double>(), std::cos(angle), 1e-6) << t << " " << r;
      EXPECT_NEAR(angles.sin_PR[row][r].item<double>(), std::sin(angle), 1e-6) << t << " " << r;
    }
  }
}

}  // namespace
}  // namespace expertmesh::model
