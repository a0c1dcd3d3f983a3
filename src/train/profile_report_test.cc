// SPDX-License-Identifier: Apache-2.0
#include "train/profile_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace expertmesh::train {
namespace {

using base::Lane;
using base::SpanKind;
using testing::HasSubstr;

constexpr int64_t kMs = 1000000;

base::Trace::Sum sum(SpanKind kind, int64_t calls, int64_t total_ms, int64_t self_ms, double flops = 0,
                     double bytes = 0) {
  return {.kind = kind,
          .lane = Lane::kCompute,
          .calls = calls,
          .total_ns = total_ms * kMs,
          .self_ns = self_ms * kMs,
          .flops = flops,
          .bytes = bytes};
}

// Two steps of 100 ms, of which `wait_ms` each are waits.
RankProfile rank_profile(int rank, int64_t wait_ms) {
  RankProfile profile{.rank = rank,
                      .place = "dp 0",
                      .roofline = {.fp32_flops_per_s = 1e10, .bf16_flops_per_s = 1e11, .copy_bytes_per_s = 1e9},
                      .events = 12,
                      .dropped = 0,
                      .tensor_bytes = 3 << 20,
                      .arena_bytes = 4 << 20,
                      .rows = {{"step", sum(SpanKind::kScope, 2, 200, 10)},
                               {"layer", sum(SpanKind::kScope, 4, 190, 10)},
                               {"experts", sum(SpanKind::kOperator, 4, 100, 100, 4e9)},
                               {"optimizer", sum(SpanKind::kOperator, 2, 80 - 2 * wait_ms, 80 - 2 * wait_ms, 0, 2e7)},
                               {"wait: exchange", sum(SpanKind::kWait, 4, 2 * wait_ms, 2 * wait_ms)}},
                      .lanes = {}};
  profile.lanes[static_cast<size_t>(Lane::kExchange)] = {
      .flights = 4, .bytes = 4 << 20, .waited_ns = 2 * wait_ms * kMs, .flying_ns = 60 * kMs};
  return profile;
}

double ms_of(const ProfileReport& report, std::string_view name) {
  for (const ProfileRow& row : report.rows) {
    if (row.name == name) return row.ms;
  }
  return -1;
}

TEST(ProfileReport, RowsAddUpToTheStep) {
  const ProfileReport report = ProfileReport::of({rank_profile(0, 10), rank_profile(1, 30)}, true);
  EXPECT_DOUBLE_EQ(report.step_ms, 100);
  double ms = 0, share = 0;
  for (const ProfileRow& row : report.rows) ms += row.ms, share += row.share;
  EXPECT_NEAR(ms, 100, 1e-9);
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_EQ(report.rows.front().name, "experts");
  EXPECT_DOUBLE_EQ(ms_of(report, "wait: exchange"), 20);
  EXPECT_DOUBLE_EQ(ms_of(report, "between operators"), 10);
  EXPECT_EQ(ms_of(report, "step"), -1);
}

TEST(ProfileReport, RatesAndTheirPartOfTheRoofline) {
  const ProfileReport report = ProfileReport::of({rank_profile(0, 0)}, true);
  EXPECT_DOUBLE_EQ(report.rows[0].flops_per_s, 4e10);
  EXPECT_DOUBLE_EQ(report.rows[0].of_roofline, 0.4);  // of bf16 products
  EXPECT_DOUBLE_EQ(report.rows[1].bytes_per_s, 2.5e8);
  EXPECT_DOUBLE_EQ(report.rows[1].of_roofline, 0.25);  // of copies
  EXPECT_DOUBLE_EQ(ProfileReport::of({rank_profile(0, 0)}, false).rows[0].of_roofline, 4);
}

TEST(ProfileReport, ImbalanceIsOfTheTimeThatRanksDoNotWait) {
  EXPECT_DOUBLE_EQ(ProfileReport::of({rank_profile(0, 20), rank_profile(1, 20)}, true).imbalance, 1);
  EXPECT_DOUBLE_EQ(ProfileReport::of({rank_profile(0, 0), rank_profile(1, 40)}, true).imbalance, 1.25);
}

TEST(ProfileReport, TravelsAsJson) {
  const RankProfile profile = rank_profile(3, 10);
  const base::Json json = to_json(profile);
  EXPECT_EQ(to_json(rank_profile_from_json(base::parse_json(base::dump_json(json)))), json);
}

TEST(ProfileReport, TextNamesWhatIsMissing) {
  RankProfile full = rank_profile(0, 10);
  EXPECT_THAT(ProfileReport::of({full}, true).to_text(), Not(HasSubstr("did not fit")));
  full.dropped = 17;
  EXPECT_THAT(ProfileReport::of({full}, true).to_text(), HasSubstr("17 more did not fit"));
}

TEST(ProfileReport, OneRankHasNoPeers) {
  EXPECT_THAT(ProfileReport::of({rank_profile(0, 0)}, true).to_text(), Not(HasSubstr("between the ranks")));
  EXPECT_THAT(ProfileReport::of({rank_profile(0, 10), rank_profile(1, 10)}, true).to_text(),
              AllOf(HasSubstr("between the ranks"), HasSubstr("imbalance 1.000")));
}

TEST(ProfileReport, WithoutAStepItSaysSo) {
  const ProfileReport report = ProfileReport::of({RankProfile{}}, true);
  EXPECT_TRUE(report.rows.empty());
  EXPECT_THAT(report.to_text(), HasSubstr("no step"));
}

}  // namespace
}  // namespace expertmesh::train
