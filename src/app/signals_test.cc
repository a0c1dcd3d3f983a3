// SPDX-License-Identifier: Apache-2.0
#include "app/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
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

TEST(FileGoneOnSignalDeathTest, TheFileGoesWhileItIsUnfinishedAndTheSignalEndsTheProcess) {
  const std::string path = testing::TempDir() + "unfinished.tmp";
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const bool is_finished : {false, true}) {
      std::ofstream(path) << "a line";
      const auto end = [&] {
        std::optional<FileGoneOnSignal> file(path);
        if (is_finished) file.reset();
        std::raise(signal);
      };
      EXPECT_EXIT(end(), testing::KilledBySignal(signal), "");
      EXPECT_EQ(std::filesystem::exists(path), is_finished) << signal;
    }
  }
}

TEST(FileGoneOnSignalDeathTest, AnIgnoredSignalStaysIgnored) {
  const auto ignore = [] {
    std::signal(SIGINT, SIG_IGN);
    {
      const FileGoneOnSignal file("unfinished.tmp");
      std::raise(SIGINT);
    }
    std::raise(SIGINT);
    std::_Exit(7);
  };
  EXPECT_EXIT(ignore(), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace expertmesh::app
