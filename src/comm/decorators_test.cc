// SPDX-License-Identifier: Apache-2.0
#include "comm/decorators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/world.h"

namespace expertmesh::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;

std::shared_ptr<Group> everyone(World& world, FaultPlan plan) {
  std::vector<int> all;
  all.reserve(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
  return make_faulty_group(world.make_group("slow", {all}), std::move(plan));
}

TEST(FaultyGroup, DelaysAndStillComputes) {
  run_threads(2, {}, [](World& world) {
    const auto group = everyone(world, {.delay = milliseconds(20)});
    const auto start = Clock::now();
    EXPECT_EQ(group->all_reduce_int(1, ReduceOp::kSum, "a"), 2);
    group->barrier("b");
    EXPECT_GE(Clock::now() - start, milliseconds(40));
    EXPECT_EQ(group->all_gather_text("x", "c"), (std::vector<std::string>{"x", "x"}));
    EXPECT_EQ(group->exchange_counts(std::vector<int64_t>{3, 3}, "d"), (std::vector<int64_t>{3, 3}));
  });
}

// A machine that stops for a moment makes a wait long, but not five in turn.
TEST(FaultyGroup, BandwidthCountsOwnBytesAndIsHiddenByWork) {
  bool is_hidden = false;
  for (int round = 0; round < 5 && !is_hidden; ++round) {
    std::atomic<int> num_hidden{0};
    run_threads(2, {}, [&](World& world) {
      const auto group = everyone(world, {.bytes_per_second = 4e4});
      std::vector<float> values(10000, 1.0F);  // 1 s
      const auto start = Clock::now();
      const auto work = group->all_reduce_async({{.data = values.data(), .count = 10000}}, ReduceOp::kSum, "a");
      std::this_thread::sleep_for(milliseconds(1100));
      const auto before = Clock::now();
      work->wait();
      if (Clock::now() - before < milliseconds(900)) ++num_hidden;
      EXPECT_EQ(values[9999], 2.0F);
      group->all_reduce({{.data = values.data(), .count = 10000}}, ReduceOp::kSum, "b");
      EXPECT_GE(Clock::now() - start, milliseconds(2100));
    });
    is_hidden = num_hidden == 2;
  }
  EXPECT_TRUE(is_hidden);
}

// Two calls on their way together share the link.
TEST(FaultyGroup, BytesPassOneCallAfterTheOther) {
  run_threads(2, {}, [](World& world) {
    const auto group = everyone(world, {.bytes_per_second = 2e5});
    const std::vector<int64_t> counts(2, 20000);
    const std::vector<uint8_t> send(40000, 3);
    std::vector<uint8_t> first(40000), second(40000);
    const auto start = Clock::now();
    const auto post = [&](std::vector<uint8_t>& recv) {
      return group->all_to_all_async(
          {.send = send.data(), .send_counts = counts, .recv = recv.data(), .recv_counts = counts, .row_bytes = 1},
          "a");
    };
    const auto work_a = post(first), work_b = post(second);
    work_a->wait();
    EXPECT_GE(Clock::now() - start, milliseconds(100));
    work_b->wait();
    EXPECT_GE(Clock::now() - start, milliseconds(200));
    EXPECT_EQ(second, send);
  });
}

TEST(CountingGroup, CountsWhatLeavesTheRank) {
  run_threads(3, {}, [](World& world) {
    int64_t bytes = 0;
    const auto group = make_counting_group(world.make_group("counted", {{0, 1, 2}}), bytes);
    const std::vector<int64_t> send_counts{4, 5, 6};
    const std::vector<int64_t> recv_counts(3, send_counts[static_cast<size_t>(world.rank())]);
    const std::vector<uint16_t> send(15, 7);
    std::vector<uint16_t> recv(static_cast<size_t>(3 * recv_counts[0]));
    group->all_to_all({.send = send.data(),
                       .send_counts = send_counts,
                       .recv = recv.data(),
                       .recv_counts = recv_counts,
                       .row_bytes = 2},
                      "a");
    EXPECT_EQ(recv, std::vector<uint16_t>(recv.size(), 7));
    const int64_t exchanged = 2 * (15 - send_counts[static_cast<size_t>(world.rank())]);
    EXPECT_EQ(bytes, exchanged);
    EXPECT_EQ(group->all_reduce_int(1, ReduceOp::kSum, "b"), 3);
    EXPECT_EQ(bytes, exchanged + 8);
    group->barrier("c");
    ASSERT_TRUE(group->shares_memory());
    int64_t value = world.rank();
    void* const own[] = {&value};
    const auto window = group->open_window(own, "d");
    EXPECT_EQ(*static_cast<int64_t*>(window->buffer(2, 0)), 2);
    window->close();
    EXPECT_EQ(bytes, exchanged + 8);
  });
}

TEST(FaultyGroup, ThrowsAtItsCall) {
  try {
    run_threads(2, {}, [](World& world) {
      FaultPlan plan;
      if (world.rank() == 1) {
        plan.throw_at = 3;
        plan.error = base::make_error(base::Code::kResources, "resources/memory", "out of memory in call 3");
      }
      const auto group = everyone(world, plan);
      for (int call = 0; call < 5; ++call) group->barrier("b");
    });
    FAIL() << "nothing was thrown";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kResources);
    EXPECT_EQ(error.rank(), 1);
  }
}

TEST(FaultyGroup, ADroppedCallIsFoundByThePeers) {
  try {
    run_threads(2, {}, [](World& world) {
      const auto group = everyone(world, {.drop_at = world.rank() == 0 ? 1U : 0U});
      std::vector<float> value = {1.0F};
      group->all_reduce({{.data = value.data(), .count = 1}}, ReduceOp::kSum, "first");
      group->all_reduce({{.data = value.data(), .count = 1}}, ReduceOp::kSum, "second");
    });
    FAIL() << "nothing was thrown";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kInternal);
    EXPECT_THAT(error.message(), HasSubstr("\"first\""));
    EXPECT_THAT(error.message(), HasSubstr("\"second\""));
  }
}

}  // namespace
}  // namespace expertmesh::comm
