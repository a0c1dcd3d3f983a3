// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace expertmesh::app {
namespace {

TEST(StoppableAnswer, AWishEndsWithItsAnswer) {
  EXPECT_FALSE(is_answer_stopped());
  {
    const StoppableAnswer answer;
    EXPECT_FALSE(is_answer_stopped());
    std::raise(SIGINT);
    EXPECT_TRUE(is_answer_stopped());
  }
  EXPECT_FALSE(is_answer_stopped());
}

TEST(StoppableAnswerDeathTest, TheSecondCtrlCEndsTheProcess) {
  const auto interrupt_twice = [] {
    const StoppableAnswer answer;
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(interrupt_twice(), testing::ExitedWithCode(128 + SIGINT), "");
  const auto interrupt_after = [] {
    {
      const StoppableAnswer answer;
    }
    std::raise(SIGINT);
  };
  EXPECT_EXIT(interrupt_after(), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace expertmesh::app
