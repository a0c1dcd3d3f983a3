// SPDX-License-Identifier: Apache-2.0
#include "base/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace expertmesh::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The wanted numbers were printed by torch 2.11 and CPython 3.11.
TEST(TorchRandperm, EqualsTorch) {
  EXPECT_THAT(torch_randperm(10, 42), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  EXPECT_THAT(torch_randperm(10, (uint64_t{1} << 40) + 5), ElementsAre(1, 4, 9, 6, 3, 5, 0, 2, 8, 7));
  EXPECT_THAT(torch_randperm(10, static_cast<uint64_t>(-1)), ElementsAre(1, 4, 6, 2, 0, 5, 8, 7, 9, 3));
  EXPECT_THAT(torch_randperm(1, 7), ElementsAre(0));
  EXPECT_THAT(torch_randperm(0, 7), IsEmpty());
  auto large = torch_randperm(5000, 3);  // past two refills of the state
  EXPECT_THAT(std::vector<int64_t>(large.end() - 6, large.end()), ElementsAre(2884, 4979, 2614, 1872, 1544, 765));
  std::sort(large.begin(), large.end());
  for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(large[i], i);
}

TEST(PythonRandom, EqualsPython) {
  EXPECT_THAT(PythonRandom(42).choices(100, 10), ElementsAre(63, 2, 27, 22, 73, 67, 89, 8, 42, 2));
  EXPECT_THAT(PythonRandom(0).choices(1000, 5), ElementsAre(844, 757, 420, 258, 511));
  EXPECT_THAT(PythonRandom((uint64_t{1} << 40) + 5).choices(1000, 5), ElementsAre(504, 268, 925, 530, 817));
  PythonRandom random(42);
  EXPECT_EQ(random.random(), 0.6394267984578837);
  EXPECT_THAT(random.choices(1, 3), ElementsAre(0, 0, 0));
}

TEST(RandomField, AnyPartEqualsTheWhole) {
  const RandomField field(42, "model.layers.0.mlp.gate.weight");
  std::vector<float> whole(1000);
  field.fill_normal(0, whole, 0, 1);
  for (const uint64_t begin : {0, 1, 2, 3, 4, 5, 127, 998}) {
    std::vector<float> part(std::min<uint64_t>(17, 1000 - begin));
    field.fill_normal(begin, part, 0, 1);
    for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[begin + i]);
  }
  EXPECT_EQ(field.normal(123), whole[123]);
}

TEST(RandomField, IsNormal) {
  constexpr int kCount = 400'000;
  std::vector<float> values(kCount);
  RandomField(1, "w").fill_normal(uint64_t{1} << 33, values, 0.5F, 2);
  double mean = 0, square = 0, fourth = 0;
  for (const float value : values) {
    const double z = (value - 0.5) / 2;
    mean += z;
    square += z * z;
    fourth += z * z * z * z;
  }
  EXPECT_NEAR(mean / kCount, 0, 0.01);
  EXPECT_NEAR(square / kCount, 1, 0.01);
  EXPECT_NEAR(fourth / kCount, 3, 0.06);
}

TEST(RandomField, UniformNumbersFillTheUnitIntervalEvenly) {
  constexpr int kCount = 200'000, kBins = 20;
  const RandomField field(1, "row 0");
  std::vector<int> bins(kBins, 0);
  double neighbours = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = field.uniform(i);
    ASSERT_TRUE(value >= 0 && value < 1) << value;
    ++bins[static_cast<size_t>(value * kBins)];
    neighbours += (value - 0.5) * (field.uniform(i + 1) - 0.5);
  }
  for (const int count : bins) EXPECT_NEAR(count, kCount / kBins, 500);  // five standard deviations
  EXPECT_NEAR(neighbours / kCount, 0, 0.001);
  EXPECT_EQ(field.uniform(7), RandomField(1, "row 0").uniform(7));
  EXPECT_NE(field.uniform(7), RandomField(1, "row 1").uniform(7));
}

TEST(RandomField, SeedsAndNamesGiveUnrelatedNumbers) {
  const auto correlation = [](const RandomField& a, const RandomField& b) {
    double sum = 0;
    for (uint64_t i = 0; i < 20'000; ++i) sum += a.normal(i) * b.normal(i);
    return std::abs(sum) / 20'000;
  };
  const RandomField field(1, "w0");
  EXPECT_LT(correlation(field, RandomField(2, "w0")), 0.03);
  EXPECT_LT(correlation(field, RandomField(1, "w1")), 0.03);
  EXPECT_GT(correlation(field, RandomField(1, "w0")), 0.9);
}

}  // namespace
}  // namespace expertmesh::base
