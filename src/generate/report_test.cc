// SPDX-License-Identifier: Apache-2.0
#include "generate/report.h"

#include <gtest/gtest.h>

namespace expertmesh::generate {
namespace {

TEST(RankReport, ComesBackAsItWas) {
  RankReport report{.wants_stop = true, .has_work = false, .prompt_tokens = 70000, .new_tokens = 3, .finished = {}};
  report.finished.push_back({.row = 5, .answer = {.ids = {1, 0, 248319}, .is_ended = true}});
  report.finished.push_back({.row = 1, .answer = {}});
  const RankReport back = unpack(pack(report));
  EXPECT_TRUE(back.wants_stop);
  EXPECT_FALSE(back.has_work);
  EXPECT_EQ(back.prompt_tokens, 70000);
  EXPECT_EQ(back.new_tokens, 3);
  ASSERT_EQ(back.finished.size(), 2U);
  EXPECT_EQ(back.finished[0].row, 5U);
  EXPECT_EQ(back.finished[0].answer.ids, (std::vector<int32_t>{1, 0, 248319}));
  EXPECT_TRUE(back.finished[0].answer.is_ended);
  EXPECT_EQ(back.finished[1].row, 1U);
  EXPECT_TRUE(back.finished[1].answer.ids.empty());
  EXPECT_FALSE(back.finished[1].answer.is_ended);
}

TEST(RankReport, OfNothing) {
  const RankReport back = unpack(pack({.wants_stop = false, .has_work = true}));
  EXPECT_TRUE(back.has_work);
  EXPECT_TRUE(back.finished.empty());
}

}  // namespace
}  // namespace expertmesh::generate
