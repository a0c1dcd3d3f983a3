// SPDX-License-Identifier: Apache-2.0
#include "moe/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "moe/load_stats.h"

namespace expertmesh::moe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string internal_error(const std::vector<int64_t>& ids, int64_t top_k, int64_t num_experts) {
  try {
    make_source_plan(ids, top_k, num_experts);
  } catch (const base::Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 70);
    return error.text();
  }
  return {};
}

TEST(SourcePlan, SortsStablyByExpert) {
  const SourcePlan plan = make_source_plan(std::vector<int64_t>{2, 0, 0, 3, 2, 3}, 2, 4);
  EXPECT_THAT(plan.counts_E, ElementsAre(2, 0, 2, 2));
  EXPECT_THAT(plan.choice_of_row, ElementsAre(1, 2, 0, 4, 3, 5));
  EXPECT_THAT(plan.token_of_row, ElementsAre(0, 1, 0, 2, 1, 2));
  EXPECT_THAT(plan.row_of_choice, ElementsAre(2, 0, 1, 4, 3, 5));
}

TEST(SourcePlan, NoTokens) {
  const SourcePlan plan = make_source_plan({}, 2, 3);
  EXPECT_THAT(plan.counts_E, ElementsAre(0, 0, 0));
  EXPECT_TRUE(plan.choice_of_row.empty());
}

TEST(SourcePlan, ExpertPickedTwiceIsNamed) {
  EXPECT_THAT(internal_error({3, 3}, 2, 4), HasSubstr("token 0 was routed to expert 3 twice"));
  EXPECT_THAT(internal_error({0, 1, 2, 2, 1, 2}, 3, 4), HasSubstr("token 1 was routed"));
  EXPECT_EQ(internal_error({3, 0, 3, 1}, 2, 4), "");
}

TEST(SourcePlan, IdOutOfRangeIsNamed) {
  EXPECT_THAT(internal_error({0, 1, 4, 0}, 2, 4), HasSubstr("token 1 was routed to expert 4, but there are 4 experts"));
  EXPECT_THAT(internal_error({-1, 1}, 2, 4), HasSubstr("expert -1"));
}

TEST(ExpertPlan, GathersEachExpertFromItsSources) {
  // Source 0 sends 1 row to expert 0 and 2 to expert 1, source 1 none and 1, source 2 two and none.
  const ExpertPlan plan = make_expert_plan(std::vector<int64_t>{1, 2, 0, 1, 2, 0}, 3, 2);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 3, 6));
  EXPECT_THAT(plan.arrival_rows, ElementsAre(0, 4, 5, 1, 2, 3));
}

TEST(ExpertPlan, NothingArrives) {
  const ExpertPlan plan = make_expert_plan(std::vector<int64_t>{0, 0}, 2, 1);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 0));
  EXPECT_TRUE(plan.arrival_rows.empty());
}

TEST(SumParts, RowsPerRank) {
  const std::vector<int64_t> counts{1, 2, 0, 4, 0, 0};
  EXPECT_THAT(sum_parts(counts, 3), ElementsAre(3, 4, 0));
  EXPECT_THAT(sum_parts(counts, 1), ElementsAre(7));
}

// Values of cases/values/index_math.json: sizes past 2^31, without allocating.
TEST(BufferBytes, Past32Bits) {
  EXPECT_EQ(buffer_bytes(524288, 7168), 3758096384);
  EXPECT_EQ(buffer_bytes(524288, 7168 * 2), 7516192768);
  EXPECT_EQ(buffer_bytes(128, buffer_bytes(1536, 2048)), 402653184);
  EXPECT_EQ(buffer_bytes(128, buffer_bytes(1536, 2048 * 4)), 1610612736);
  EXPECT_EQ(buffer_bytes(65536, 65536), 4294967296);
  EXPECT_THROW(buffer_bytes(std::numeric_limits<int64_t>::max(), 2), base::Error);
  EXPECT_THROW(buffer_bytes(-1, 2), base::Error);
}

TEST(ExpertPlan, RowsPast32Bits) {
  // A source with 3e9 rows for another rank's experts does not shift anything here; sums stay exact.
  EXPECT_THAT(sum_parts(std::vector<int64_t>{3000000000, 3000000000, 1, 0}, 2), ElementsAre(6000000000, 1));
}

TEST(LoadStats, CountsAndRatio) {
  LoadStats load(4);
  EXPECT_EQ(summarise_load(load.counts()).max_over_mean, 0.0);
  load.add(std::vector<int64_t>{0, 1, 0, 2});
  load.add(std::vector<int64_t>{0, 3, 0, 3});
  EXPECT_THAT(load.counts(), ElementsAre(4, 1, 1, 2));
  EXPECT_DOUBLE_EQ(summarise_load(load.counts()).max_over_mean, 2.0);
  load.reset();
  EXPECT_THAT(load.counts(), ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace expertmesh::moe
