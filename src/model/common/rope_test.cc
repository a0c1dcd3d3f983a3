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

TEST(Rope, TablesGrowAndKeepTheirValues) {
  RotaryTables tables(RopeConfig{.theta = 1e4, .dim = 4, .attention_factor = 2.0});
  tables.cover(at::tensor(std::vector<int64_t>{}));
  ASSERT_GE(tables.cos().size(0), 1);
  tables.cover(at::tensor(std::vector<int64_t>{0, 3}));
  const at::Tensor before = tables.cos().clone();
  tables.cover(at::tensor(std::vector<int64_t>{5000}));
  ASSERT_GT(tables.cos().size(0), 5000);
  EXPECT_TRUE(tables.cos().narrow(0, 0, before.size(0)).equal(before));
  EXPECT_NEAR(tables.cos()[5000][1].item<double>(), 2.0 * std::cos(50.0), 1e-4);
  EXPECT_NEAR(tables.sin()[3][0].item<double>(), 2.0 * std::sin(3.0), 1e-6);
}

}  // namespace
}  // namespace expertmesh::model
