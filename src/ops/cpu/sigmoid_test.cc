// SPDX-License-Identifier: Apache-2.0
// Against the library's functions in fp64.
#include "ops/cpu/sigmoid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace expertmesh::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kUlp = 1.1920929e-7;  // the largest a float's ulp can be of it

using Function = Vec (*)(Vec);

std::vector<float> values(Function function, std::vector<float> x) {
  const size_t size = x.size();
  x.resize((size + kLanes - 1) / kLanes * kLanes);
  for (size_t i = 0; i < x.size(); i += kLanes) store(&x[i], function(load(&x[i])));
  x.resize(size);
  return x;
}

std::vector<float> steps(double first, double last, double step) {
  std::vector<float> x;
  for (double value = first; value < last; value += step) x.push_back(static_cast<float>(value));
  return x;
}

double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double exact_slope(double x) { return std::exp(-std::fabs(x)) / std::pow(1.0 + std::exp(-std::fabs(x)), 2); }
double exact_softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// `flushed`: exp is 0 where it would be a subnormal.
void expect_near(Function function, double (*exact)(double), const std::vector<float>& x, double bound,
                 double flushed = 0.0) {
  const std::vector<float> y = values(function, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = exact(x[i]);
    ASSERT_NEAR(y[i], wanted, bound * wanted + flushed) << x[i];
  }
}

TEST(Log1p, IsWithinOneUlp) {
  std::vector<float> u = steps(0.0, 1.0, 1.7e-6);
  for (double small = 1e-38; small < 1.0; small *= 1.0037) u.push_back(static_cast<float>(small));
  u.push_back(1.0F);
  expect_near([](Vec v) { return log1p(v); }, [](double v) { return std::log1p(v); }, u, kUlp);
  EXPECT_EQ(values([](Vec v) { return log1p(v); }, {0.0F})[0], 0.0F);
}

TEST(Sigmoid, IsNearFromEndToEnd) {
  const std::vector<float> x = steps(-90.0, 90.0, 0.00137);
  expect_near([](Vec v) { return sigmoid(v); }, exact_sigmoid, x, 2.0 * kUlp, 1e-38);
  expect_near([](Vec v) { return sigmoid_slope(v).value; }, exact_sigmoid, x, 2.5 * kUlp, 4e-38);
  expect_near([](Vec v) { return sigmoid_slope(v).slope; }, exact_slope, x, 3.5 * kUlp, 4e-38);
  expect_near([](Vec v) { return softplus(v); }, exact_softplus, x, 2.0 * kUlp, 4e-38);
}

TEST(Sigmoid, HandlesTheEnds) {
  const std::vector<float> x = {kInf, -kInf, 0.0F, -0.0F, 1e30F, -1e30F, std::nanf("")};
  const auto sigmoids = values([](Vec v) { return sigmoid(v); }, x);
  const auto same = values([](Vec v) { return sigmoid_slope(v).value; }, x);
  const auto slopes = values([](Vec v) { return sigmoid_slope(v).slope; }, x);
  const auto softpluses = values([](Vec v) { return softplus(v); }, x);
  const std::vector<float> wanted = {1.0F, 0.0F, 0.5F, 0.5F, 1.0F, 0.0F};
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(sigmoids[i], wanted[i]) << x[i];
    EXPECT_EQ(same[i], wanted[i]) << x[i];
    EXPECT_EQ(slopes[i], x[i] == 0.0F ? 0.25F : 0.0F) << x[i];
  }
  EXPECT_EQ(softpluses[0], kInf);
  EXPECT_EQ(softpluses[1], 0.0F);
  EXPECT_EQ(softpluses[2], softpluses[3]);
  EXPECT_EQ(softpluses[4], 1e30F);
  EXPECT_EQ(softpluses[5], 0.0F);
  for (const auto* of_nan : {&sigmoids, &same, &slopes, &softpluses}) EXPECT_TRUE(std::isnan(of_nan->back()));
}

}  // namespace
}  // namespace expertmesh::ops::cpu
