// SPDX-License-Identifier: Apache-2.0
#include "moe/choice_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"

namespace expertmesh::moe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig);
    return error.text();
  }
  return {};
}

TEST(ChoiceRule, Parses) {
  EXPECT_FALSE(try_parse_debug_router("").has_value());
  EXPECT_EQ(try_parse_debug_router("balanced")->kind, DebugRouter::Kind::kBalanced);
  const DebugRouter hot = *try_parse_debug_router("hot:12@3");
  EXPECT_EQ(hot.kind, DebugRouter::Kind::kHot);
  EXPECT_EQ(hot.number, 12);
  EXPECT_EQ(hot.rank, 3);
  const DebugRouter none = *try_parse_debug_router("none:1");
  EXPECT_EQ(none.kind, DebugRouter::Kind::kNone);
  EXPECT_EQ(none.number, 1);
  EXPECT_FALSE(none.rank.has_value());
  EXPECT_EQ(try_parse_debug_router("rotating:4")->kind, DebugRouter::Kind::kRotating);
  const DebugRouter burst = *try_parse_debug_router("burst:2/8@1");
  EXPECT_EQ(burst.kind, DebugRouter::Kind::kBurst);
  EXPECT_EQ(burst.number, 2);
  EXPECT_EQ(burst.period, 8);
  EXPECT_EQ(burst.rank, 1);
}

TEST(ChoiceRule, RefusesWhatIsNoRule) {
  for (const char* text :
       {"hot", "hot:", "hot:-1", "hot:2x", "cold:2", "balanced:1", "hot:2@", "hot:2@-1", "hot:2@a", "@1",
        "none:99999999999999999999", " hot:2", "rotating:", "burst:2", "burst:2/0", "burst:/2", "hot:2/8"}) {
    EXPECT_THAT(error_of([&] { try_parse_debug_router(text); }), HasSubstr("is no rule")) << text;
  }
}

TEST(ChoiceRule, RefusesWhatDoesNotFit) {
  const auto world = comm::make_single_world();
  EXPECT_THAT(error_of([&] { make_choice_rule("hot:1", 8, 2, world->all()); }), HasSubstr("Use hot:2 to hot:8."));
  EXPECT_THAT(error_of([&] { make_choice_rule("hot:9", 8, 2, world->all()); }), HasSubstr("hot:9"));
  EXPECT_THAT(error_of([&] { make_choice_rule("none:1", 8, 2, world->all()); }), HasSubstr("ep_size is 1"));
  EXPECT_THAT(error_of([&] { make_choice_rule("none:0", 8, 2, world->all()); }), HasSubstr("leaves 0 of 8 experts"));
}

std::vector<int64_t> left(const ChoiceRule& rule, int64_t micro_batch, int64_t num_experts) {
  std::vector<int64_t> experts;
  const ExcludedExperts excluded = rule.excluded_in(micro_batch, num_experts);
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    if (!excluded.contains(expert, num_experts)) experts.push_back(expert);
  }
  return experts;
}

TEST(ChoiceRule, RotatingMovesOnAndComesRound) {
  const auto world = comm::make_single_world();
  const ChoiceRule rule = make_choice_rule("rotating:3", 8, 2, world->all());
  EXPECT_THAT(left(rule, 0, 8), ElementsAre(0, 1, 2));
  EXPECT_THAT(left(rule, 1, 8), ElementsAre(3, 4, 5));
  EXPECT_THAT(left(rule, 2, 8), ElementsAre(0, 6, 7));
  EXPECT_THAT(left(rule, 8, 8), ElementsAre(0, 1, 2));
  EXPECT_THAT(left(make_choice_rule("rotating:8", 8, 2, world->all()), 5, 8), SizeIs(8));
}

TEST(ChoiceRule, BurstIsTheLastOfItsPeriod) {
  const auto world = comm::make_single_world();
  const ChoiceRule rule = make_choice_rule("burst:2/3", 5, 2, world->all());
  for (const int64_t micro_batch : {0, 1, 3, 4}) EXPECT_THAT(left(rule, micro_batch, 5), SizeIs(5));
  for (const int64_t micro_batch : {2, 5}) EXPECT_THAT(left(rule, micro_batch, 5), ElementsAre(0, 1));
}

TEST(ChoiceRule, AppliesOnItsRankOnly) {
  const auto world = comm::make_single_world();
  const ChoiceRule here = make_choice_rule("hot:2@0", 8, 2, world->all());
  EXPECT_EQ(here.excluded.begin, 2);
  EXPECT_EQ(here.excluded.end, 8);
  EXPECT_EQ(make_choice_rule("hot:2@1", 8, 2, world->all()).excluded.size(), 0);
  EXPECT_TRUE(make_choice_rule("balanced", 8, 2, world->all()).balanced);
  EXPECT_FALSE(make_choice_rule("balanced@5", 8, 2, world->all()).balanced);
}

}  // namespace
}  // namespace expertmesh::moe
