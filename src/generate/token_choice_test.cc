// SPDX-License-Identifier: Apache-2.0
#include "generate/token_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace expertmesh::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_scores(size_t count, std::string_view name, float spread = 3) {
  std::vector<float> scores(count);
  base::RandomField(5, name).fill_normal(0, scores, 0, spread);
  return scores;
}

// The filters as they read, over everything: id -> probability.
std::map<int32_t, double> probabilities(const std::vector<float>& scores, const Sampling& sampling) {
  std::vector<double> scaled(scores.begin(), scores.end());
  for (double& score : scaled) score /= sampling.temperature;
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scaled[a] > scaled[b]; });

  std::vector<int32_t> left;
  for (const int32_t id : order) {
    const bool is_in = sampling.top_k == 0 || sampling.top_k > static_cast<int64_t>(order.size()) ||
                       scaled[id] >= scaled[order[sampling.top_k - 1]];
    if (is_in) left.push_back(id);
  }
  const auto sum_of = [&](const std::vector<int32_t>& ids) {
    double sum = 0;
    for (const int32_t id : ids) sum += std::exp(scaled[id] - scaled[order[0]]);
    return sum;
  };
  const double all = sum_of(left);
  std::vector<int32_t> kept;
  for (const int32_t id : left) {
    if (!kept.empty() && sum_of(kept) / all >= sampling.top_p) break;
    kept.push_back(id);
  }
  std::map<int32_t, double> result;
  for (const int32_t id : kept) result[id] = std::exp(scaled[id] - scaled[order[0]]) / sum_of(kept);
  return result;
}

base::Error error_of(const std::vector<float>& scores, const Sampling& sampling) {
  try {
    TokenChooser(sampling, 1, 2).choose(scores);
  } catch (const base::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {base::Code::kInternal, "none", "none"};
}

TEST(BestToken, TakesTheLowestIdOnATie) {
  EXPECT_EQ(best_token(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(best_token(std::vector<float>{0, 0, 0}), 0);
  EXPECT_EQ(best_token(std::vector<float>{-kInf, -5}), 1);
  EXPECT_EQ(best_token(std::vector<float>{7}), 0);
}

TEST(TokenChooser, GreedyIsTheBestOneWhateverSeedAndFilters) {
  const auto scores = random_scores(1000, "greedy");
  for (const uint64_t seed : {0, 1, 2}) {
    TokenChooser chooser({.temperature = 0, .top_k = 3, .top_p = 0.5}, seed, seed);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(chooser.choose(scores), best_token(scores));
  }
}

TEST(DrawnToken, OneCandidateLeavesNoChoice) {
  const auto scores = random_scores(300, "one");
  for (const double draw : {0.0, 0.3, 0.999999999}) {
    EXPECT_EQ(drawn_token(scores, {.temperature = 1, .top_k = 1}, draw), best_token(scores));
    EXPECT_EQ(drawn_token(scores, {.temperature = 1, .top_p = 1e-12}, draw), best_token(scores));
    EXPECT_EQ(drawn_token(scores, {.temperature = 1e-300}, draw), best_token(scores));
    EXPECT_EQ(drawn_token(std::vector<float>{-3}, {.temperature = 2}, draw), 0);
    EXPECT_EQ(drawn_token(std::vector<float>{-kInf, 1, -kInf}, {.temperature = 2}, draw), 1);
  }
}

TEST(DrawnToken, TopKKeepsTiesAsTransformersDoes) {
  const std::vector<float> scores{1, 5, 3, 3, 3, 0};
  std::vector<int32_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.push_back(drawn_token(scores, {.temperature = 1, .top_k = 2}, i / 1000.0));
  drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
  EXPECT_THAT(drawn, ElementsAre(1, 2, 3, 4));
}

TEST(DrawnToken, TopPStopsWhereTheSumReachesIt) {
  // Probabilities 0.5, 0.25, 0.25, exactly.
  const std::vector<float> scores{std::log(2.0F), 0, 0};
  const auto last = [&](double top_p) { return drawn_token(scores, {.temperature = 1, .top_p = top_p}, 0.9999); };
  EXPECT_EQ(last(0.4), 0);
  EXPECT_EQ(last(0.6), 1);
  EXPECT_EQ(last(0.9), 2);
  EXPECT_EQ(last(1.0), 2);
}

// Walking over the draws meets every candidate for as long as its probability says, and nobody else.
TEST(DrawnToken, HasTheProbabilitiesOfThePlainFilters) {
  for (const size_t vocab : {1U, 2U, 65U, 700U}) {
    const auto scores = random_scores(vocab, "plain");
    for (const Sampling& sampling : {Sampling{1, 0, 1}, Sampling{0.7, 0, 1}, Sampling{2.5, 0, 0.9}, Sampling{1, 20, 1},
                                     Sampling{0.6, 20, 0.95}, Sampling{30, 0, 0.97}, Sampling{1, 5000, 0.5}}) {
      const auto expected = probabilities(scores, sampling);
      constexpr int kDraws = 20000;
      std::map<int32_t, double> found;
      for (int i = 0; i < kDraws; ++i) found[drawn_token(scores, sampling, (i + 0.5) / kDraws)] += 1.0 / kDraws;
      for (const auto& [id, share] : found) ASSERT_TRUE(expected.contains(id)) << id << " of " << vocab;
      for (const auto& [id, share] : expected) EXPECT_NEAR(found[id], share, 1.5 / kDraws) << id << " of " << vocab;
    }
  }
}

TEST(TokenChooser, ManyDrawsFollowTheProbabilities) {
  const auto scores = random_scores(40, "chi", 1.5);
  const Sampling sampling{.temperature = 0.8, .top_k = 25, .top_p = 0.95};
  const auto expected = probabilities(scores, sampling);
  constexpr int kDraws = 50'000;
  std::map<int32_t, int> counts;
  TokenChooser chooser(sampling, 42, 0);
  for (int i = 0; i < kDraws; ++i) ++counts[chooser.choose(scores)];
  double chi_square = 0;
  for (const auto& [id, share] : expected) {
    const double mean = share * kDraws;
    ASSERT_GT(mean, 5) << id;
    chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  const auto freedom = static_cast<double>(expected.size() - 1);
  EXPECT_GE(freedom, 5);
  EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom));
  EXPECT_GT(chi_square, freedom - 3 * std::sqrt(2 * freedom));
}

TEST(TokenChooser, StreamsDoNotDependOnEachOther) {
  const auto scores = random_scores(500, "streams");
  const Sampling sampling{.temperature = 1};
  const auto alone = [&](uint64_t seed, uint64_t row) {
    TokenChooser chooser(sampling, seed, row);
    std::vector<int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(chooser.choose(scores));
    return ids;
  };
  TokenChooser first(sampling, 42, 0), second(sampling, 42, 1);
  std::vector<int32_t> first_ids, second_ids;
  for (int i = 0; i < 20; ++i) {
    second_ids.push_back(second.choose(scores));
    first_ids.push_back(first.choose(scores));
  }
  EXPECT_EQ(first_ids, alone(42, 0));
  EXPECT_EQ(second_ids, alone(42, 1));
  EXPECT_NE(first_ids, second_ids);
  EXPECT_NE(alone(42, 0), alone(43, 0));
}

TEST(TokenChooser, ScoresThatAreNotFiniteAreErrors) {
  for (const Sampling& sampling : {Sampling{}, Sampling{.temperature = 1, .top_k = 2, .top_p = 0.9}}) {
    for (const auto& scores : {std::vector<float>{1, kNan, 2}, {kNan, 1}, {1, 2, kNan}, {0, kInf}}) {
      const base::Error error = error_of(scores, sampling);
      EXPECT_EQ(error.code(), base::Code::kNumerics);
      EXPECT_THAT(error.text(), HasSubstr("row 3, new token 1"));
      EXPECT_THAT(error.text(), HasSubstr("the model's score of token"));
    }
    EXPECT_THAT(error_of({-kInf, -kInf}, sampling).text(), HasSubstr("all tokens"));
  }
}

TEST(SamplingValues, AreChecked) {
  for (const double good : {0.0, 1e-3, 1.0, 100.0}) EXPECT_EQ(temperature_fault(good), "") << good;
  for (const double bad : {-1.0, -1e-9, static_cast<double>(kNan), static_cast<double>(kInf)}) {
    EXPECT_NE(temperature_fault(bad), "") << bad;
  }
  for (const double good : {1e-9, 0.5, 1.0}) EXPECT_EQ(top_p_fault(good), "") << good;
  for (const double bad : {0.0, -0.5, 1.0001, 2.0, static_cast<double>(kNan)}) EXPECT_NE(top_p_fault(bad), "") << bad;
  EXPECT_EQ(top_k_fault(0), "");
  EXPECT_EQ(top_k_fault(1 << 30), "");
  EXPECT_NE(top_k_fault(-1), "");
}

}  // namespace
}  // namespace expertmesh::generate
