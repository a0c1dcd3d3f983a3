// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"

namespace expertmesh::base {
namespace {

using ::testing::HasSubstr;

class FaultTest : public ::testing::Test {
 protected:
  ~FaultTest() override {
    configure_faults("");
    set_fault_rank(-1);
  }
};

void reach() { EXPERTMESH_FAULT_POINT("a.b"); }

TEST_F(FaultTest, OffCostsNothingAndCountsNothing) {
  configure_faults("");
  EXPECT_NO_THROW(reach());
  EXPECT_EQ(fault_counts(), "");
}

TEST_F(FaultTest, ThrowsAtTheWantedHitOfTheWantedRank) {
  configure_faults("a.b:rank=1:hit=2:do=throw");
  set_fault_rank(0);
  for (int i = 0; i < 4; ++i) EXPECT_NO_THROW(reach());
  set_fault_rank(1);
  EXPECT_NO_THROW(reach());
  EXPECT_THROW(reach(), Error);
  EXPECT_NO_THROW(reach());
}

TEST_F(FaultTest, HitsAreCountedForEachRankAlone) {
  configure_faults("a.b:hit=2:do=throw");
  for (const int rank : {0, 1}) {
    std::thread([&] {
      set_fault_rank(rank);
      EXPECT_NO_THROW(reach());
      EXPECT_THROW(reach(), Error);
    }).join();
  }
}

TEST_F(FaultTest, FromAHitOn) {
  configure_faults("a.b:hit=2+:do=throw");
  EXPECT_NO_THROW(reach());
  EXPECT_THROW(reach(), Error);
  EXPECT_THROW(reach(), Error);
}

TEST_F(FaultTest, NanForOneName) {
  configure_faults("grad:name=w1:hit=2:do=nan");
  EXPECT_FALSE(fault_wants_nan("grad", "w1"));
  EXPECT_FALSE(fault_wants_nan("grad", "w2"));
  EXPECT_FALSE(fault_wants_nan("loss", "w1"));
  EXPECT_TRUE(fault_wants_nan("grad", "w1"));
  EXPECT_FALSE(fault_wants_nan("grad", "w1"));
}

TEST_F(FaultTest, CountsAllPoints) {
  configure_faults("*:do=count");
  reach();
  reach();
  EXPERTMESH_FAULT_POINT("c");
  EXPECT_EQ(fault_counts(), "a.b 2\nc 1\n");
}

TEST_F(FaultTest, SleepsAndSeveralAtOnce) {
  configure_faults("a.b:do=sleep_ms=20,c:do=throw");
  const auto begin = std::chrono::steady_clock::now();
  reach();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_THROW(EXPERTMESH_FAULT_POINT("c"), Error);
}

TEST_F(FaultTest, KillAndExitEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((configure_faults("a.b:do=kill"), reach()), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT((configure_faults("a.b:do=exit"), reach()), testing::ExitedWithCode(1), "");
}

TEST_F(FaultTest, BadTextIsAUsageError) {
  for (const char* text : {"a", "a:do=explode", "a:rank=x:do=kill", "a:rank=-1:do=kill", "a:hit=0:do=kill", ":do=kill",
                           "a:what=1:do=kill", "a:kill", "a:do=sleep_ms=", "a:do=kill,"}) {
    try {
      configure_faults(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.text(), HasSubstr("do=kill|stop"));
    }
  }
}

}  // namespace
}  // namespace expertmesh::base
