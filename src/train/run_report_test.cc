// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "train/start_table.h"

namespace expertmesh::train {
namespace {

TEST(LogLine, StartsWithUpstreamsKeysAndIsJson) {
  StepRecord record;
  record.step = 3;
  record.total_steps = 10;
  record.loss = 1.25;
  record.grad_norm = NAN;
  const std::string line = log_line(record);
  EXPECT_TRUE(line.starts_with(R"({"epoch": 0, "step": 3, "loss": 1.25, "grad_norm": null, "learning_rate": )"))
      << line;
  std::vector<std::string> keys;
  const base::Json json = base::parse_json(line);
  for (const auto& [key, value] : *json.try_object()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"epoch", "step", "loss", "grad_norm", "learning_rate", "total_steps",
                                            "tokens_per_s", "tokens_seen", "step_s", "load_wait_s", "skipped_steps",
                                            "expert_load_max_over_mean", "aux_loss", "expert_load", "rss_mib"}));
}

TEST(LogLine, HasTheLoadOfEachLayer) {
  StepRecord record;
  record.expert_load = {{1, 1.25, 0, 0.98765}, {3, 8.0, 28, 0.4}, {4, 2.0, 1, 0.9}};
  record.aux_loss = 8.5;
  const std::string line = log_line(record);
  EXPECT_NE(line.find(R"("expert_load_max_over_mean": 8.0, "aux_loss": 8.5, "expert_load": {"layer": [1, 3, 4], )"
                      R"("max_over_mean": [1.25, 8.0, 2.0], "dead": [0, 28, 1], "entropy": [0.9877, 0.4, 0.9]})"),
            std::string::npos)
      << line;
  EXPECT_EQ(worst_load(record)->layer, 3);
  record.expert_load.clear();
  record.aux_loss.reset();
  EXPECT_NE(log_line(record).find(R"("aux_loss": null, "expert_load": {"layer": [], )"), std::string::npos);
  EXPECT_EQ(worst_load(record), nullptr);
}

TEST(LossCurve, DrawsValuesAndLeavesGaps) {
  const std::string svg = loss_curve_svg({{1, 5.0}, {2, 4.0}, {3, NAN}, {4, 3.0}, {5, 2.5}}, "a < b");
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  size_t runs = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++runs;
  EXPECT_EQ(runs, 2U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LossCurve, SurvivesEmptyAndConstantRuns) {
  for (const auto& points :
       {std::vector<CurvePoint>{}, std::vector<CurvePoint>{{1, 2.0}}, std::vector<CurvePoint>(50, {1, 2.0})}) {
    const std::string svg = loss_curve_svg(points, "t");
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST(HumanNumbers, HaveThreeDigits) {
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(1530), "1.53 K");
  EXPECT_EQ(human_count(30.5e9), "30.5 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(3.5 * 1024 * 1024 * 1024), "3.50 GiB");
}

}  // namespace
}  // namespace expertmesh::train
