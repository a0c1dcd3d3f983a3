// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

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

TEST(FileGoneOnSignalDeathTest, TheFileGoesAndTheSignalEndsTheProcess) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string path = testing::TempDir() + "unfinished.tmp";
    std::ofstream(path) << "a line";
    const auto end = [&] {
      const FileGoneOnSignal file(path);
      std::raise(signal);
    };
    EXPECT_EXIT(end(), testing::KilledBySignal(signal), "");
    EXPECT_FALSE(std::filesystem::exists(path)) << signal;
    std::ofstream(path) << "a line";
    const auto end_later = [&] {
      {
        const FileGoneOnSignal file(path);
      }
      std::raise(signal);
    };
    EXPECT_EXIT(end_later(), testing::KilledBySignal(signal), "");
    EXPECT_TRUE(std::filesystem::exists(path)) << signal;
  }
}

}  // namespace
}  // namespace expertmesh::app
