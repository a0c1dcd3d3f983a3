// SPDX-License-Identifier: Apache-2.0
#include "moe/choice_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"

namespace expertmesh::moe {
namespace {

using testing::HasSubstr;

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
}

TEST(ChoiceRule, RefusesWhatIsNoRule) {
  for (const char* text : {"hot", "hot:", "hot:-1", "hot:2x", "cold:2", "balanced:1", "hot:2@", "hot:2@-1", "hot:2@a",
                           "@1", "none:99999999999999999999", " hot:2"}) {
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
