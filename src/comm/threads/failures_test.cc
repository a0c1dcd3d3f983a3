// SPDX-License-Identifier: Apache-2.0
// Every way in which a rank can fail its peers ends in a clear error, in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/fault.h"
#include "comm/testing/soon.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

using base::Code;
using base::Error;
using base::make_error;
using comm::testing::kSoon;
using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

struct Outcome {
  std::optional<Error> error;
  double seconds = 0;
  std::vector<Error> consequences;
};

Outcome run(int ranks, const std::function<void(World&)>& body, WorldOptions options = {}) {
  Outcome outcome;
  options.on_failure = [&](const FailureReport& report) {
    outcome.consequences = report.consequences;
    EXPECT_EQ(static_cast<int>(report.ledgers.size()), ranks);
  };
  const auto start = std::chrono::steady_clock::now();
  try {
    run_threads(ranks, options, body);
  } catch (const Error& error) {
    outcome.error = error;
  }
  outcome.seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

TEST(Failures, ThrowingRankEndsTheWaitsOfAll) {
  for (const int ranks : {2, 4, 16}) {
    const Outcome outcome = run(ranks, [](World& world) {
      if (world.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw make_error(Code::kData, "data/row", "row 7 is bad").at("rows.jsonl:7");
      }
      world.all().all_reduce_int(1, ReduceOp::kSum, "loss");
    });
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), Code::kData);
    EXPECT_EQ(outcome.error->rank(), 1);
    EXPECT_EQ(outcome.error->where(), "rows.jsonl:7");
    EXPECT_LT(outcome.seconds, kSoon);
    ASSERT_EQ(static_cast<int>(outcome.consequences.size()), ranks - 1);
    EXPECT_EQ(outcome.consequences[0].code(), Code::kPeerLost);
    EXPECT_THAT(outcome.consequences[0].message(), HasSubstr("row 7 is bad"));
    EXPECT_THAT(outcome.consequences[0].message(), HasSubstr("all_reduce #1 (loss)"));
  }
}

TEST(Failures, ForeignExceptionsAreTranslated) {
  EXPECT_EQ(run(2,
                [](World& world) {
                  if (world.rank() == 0) throw std::bad_alloc();
                  world.all().barrier("b");
                })
                .error->code(),
            Code::kResources);
  const Outcome other = run(1, [](World&) { throw std::runtime_error("what happened"); });
  EXPECT_EQ(other.error->code(), Code::kInternal);
  EXPECT_THAT(other.error->message(), HasSubstr("what happened"));
  EXPECT_EQ(run(1, [](World&) { throw 7; }).error->code(), Code::kInternal);
}

TEST(Failures, ReturningEarlyIsAnErrorNotAHang) {
  const Outcome outcome = run(3, [](World& world) {
    world.all().barrier("together");
    if (world.rank() == 2) return;
    world.all().barrier("step 5");
  });
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), Code::kInternal);
  EXPECT_THAT(outcome.error->message(), HasSubstr("rank 2 ended its work while axis world: rank "));
  EXPECT_THAT(outcome.error->message(), HasSubstr("barrier #2 (step 5)"));
  EXPECT_LT(outcome.seconds, kSoon);
}

// The buffers of a rank that throws stay until the peers that read them close their windows or unwind, too.
TEST(Failures, AWindowKeepsTheBuffersOfARankThatThrows) {
  std::atomic<int> num_alive{0};
  struct Buffer {
    explicit Buffer(std::atomic<int>& alive) : count(alive) { ++count; }
    ~Buffer() { --count; }
    std::atomic<int>& count;
    std::vector<int> values = std::vector<int>(100000, 5);
  };
  const Outcome outcome = run(3, [&](World& world) {
    Buffer buffer(num_alive);
    void* const own[] = {buffer.values.data()};
    const auto window = world.all().open_window(own, "experts");
    if (world.rank() == 1) throw make_error(Code::kData, "data/row", "row 7 is bad");
    for (int round = 0; round < 20; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(num_alive, 3);
      EXPECT_EQ(static_cast<const int*>(window->buffer(1, 0))[99999], 5);
    }
    window->close();
  });
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), Code::kData);
  EXPECT_EQ(outcome.error->rank(), 1);
  ASSERT_EQ(outcome.consequences.size(), 2U);
  EXPECT_THAT(outcome.consequences[0].message(), HasSubstr("window #1 (experts)"));
  EXPECT_LT(outcome.seconds, kSoon);
}

TEST(Failures, AWindowOfOtherBuffersIsNamed) {
  const Outcome outcome = run(2, [](World& world) {
    int value = 0;
    const std::vector<void*> own(world.rank() == 0 ? 1 : 2, &value);
    world.all().open_window(own, "experts")->close();
  });
  ASSERT_TRUE(outcome.error);
  EXPECT_THAT(outcome.error->message(), HasSubstr("(1 buffers)"));
  EXPECT_THAT(outcome.error->message(), HasSubstr("(2 buffers)"));
}

TEST(Failures, AGroupGoesOnWithoutRanksOutsideIt) {
  const Outcome outcome = run(3, [](World& world) {
    const auto group = world.make_group("pair", {{0, 1}, {2}});
    if (world.rank() == 2) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * world.rank()));
    for (int i = 0; i < 100; ++i) group->barrier("go on");
  });
  EXPECT_FALSE(outcome.error);
}

TEST(Failures, DifferentCallsAreNamedOnAllRanks) {
  const Outcome outcome = run(4, [](World& world) {
    world.all().barrier("start");
    world.ledger().set_step(40, 0);
    float value[2] = {1, 2};
    if (world.rank() == 2) {
      world.all().all_reduce({{.data = value, .count = 2}}, ReduceOp::kSum, "layer 3 norm");
    } else {
      world.all().barrier("layer 3 dispatch");
    }
  });
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), Code::kInternal);
  for (const char* part : {"collective #2 of axis world in step 40:", "rank 0 calls barrier \"layer 3 dispatch\"",
                           "rank 2 calls all_reduce \"layer 3 norm\" (F32, 1 parts, 2 elements)"}) {
    EXPECT_THAT(outcome.error->message(), HasSubstr(part));
  }
  ASSERT_EQ(outcome.consequences.size(), 3U);
  for (const Error& error : outcome.consequences) EXPECT_EQ(error.message(), outcome.error->message());
}

TEST(Failures, DifferentTagsAndSizesAreFound) {
  const Outcome tags = run(2, [](World& world) { world.all().barrier(world.rank() == 0 ? "a" : "b"); });
  EXPECT_THAT(tags.error->message(), HasSubstr("\"b\""));
  const Outcome sizes = run(2, [](World& world) {
    std::vector<float> values(8);
    world.all().all_reduce({{.data = values.data(), .count = 4 + world.rank()}}, ReduceOp::kSum, "x");
  });
  EXPECT_THAT(sizes.error->message(), HasSubstr("4 elements"));
  EXPECT_THAT(sizes.error->message(), HasSubstr("5 elements"));
}

TEST(Failures, WrongExchangeCountsAreFound) {
  const Outcome outcome = run(3, [](World& world) {
    const std::vector<int64_t> send = {1, 1, 1};
    const std::vector<int64_t> recv = world.rank() == 1 ? std::vector<int64_t>{1, 1, 2} : send;
    const std::vector<uint8_t> from(3);
    std::vector<uint8_t> to(4);
    world.all().all_to_all(
        {.send = from.data(), .send_counts = send, .recv = to.data(), .recv_counts = recv, .row_bytes = 1}, "rows");
  });
  EXPECT_THAT(outcome.error->message(), HasSubstr("rank 2 sends 1 rows to rank 1, which expects 2"));
}

TEST(Failures, TimeoutNamesTheMissingRankAndItsLastCall) {
  const Outcome outcome = run(3,
                              [](World& world) {
                                world.all().barrier("step 1");
                                if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
                                world.all().all_reduce_int(1, ReduceOp::kSum, "step 2 norm");
                              },
                              {.timeout = std::chrono::seconds(1)});
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), Code::kTimeout);
  EXPECT_THAT(outcome.error->message(), HasSubstr("waits in all_reduce #2 (step 2 norm)"));
  EXPECT_THAT(outcome.error->message(), HasSubstr("rank 1 last finished barrier #1 (step 1) on axis world"));
  EXPECT_THAT(outcome.error->message(), HasSubstr("never entered #2"));
  EXPECT_LT(outcome.seconds, kSoon);
}

// A victim of a timeout may report before the rank that has the real fault.
TEST(Failures, TheCauseWinsOverAnEarlierTimeout) {
  const Outcome outcome = run(2,
                              [](World& world) {
                                if (world.rank() == 1) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(200));
                                  throw make_error(Code::kModel, "model/weights", "tensor x is missing");
                                }
                                world.all().barrier("wait");
                              },
                              {.timeout = std::chrono::milliseconds(50)});
  EXPECT_EQ(outcome.error->code(), Code::kModel);
  ASSERT_EQ(outcome.consequences.size(), 1U);
  EXPECT_EQ(outcome.consequences[0].code(), Code::kTimeout);
}

// Posted work is destroyed by the exception: the rank must neither wait for its peers nor free what they read.
TEST(Failures, UnwindingWithWorkInFlightDoesNotHang) {
  for (int round = 0; round < 20; ++round) {
    const Outcome outcome = run(4, [round](World& world) {
      const auto other = world.make_group("other", {{0, 1, 2, 3}});
      std::vector<float> data(100000, 1.0F);
      const auto work = world.all().all_reduce_async({{.data = data.data(), .count = 100000}}, ReduceOp::kSum, "grads");
      if (world.rank() == round % 4) throw make_error(Code::kNumerics, "train/loss", "loss is NaN");
      if (round % 2 == 0) other->barrier("elsewhere");
      work->wait();
    });
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), Code::kNumerics);
    EXPECT_EQ(outcome.error->rank(), round % 4);
    EXPECT_LT(outcome.seconds, kSoon);
  }
}

TEST(Failures, FirstCauseWins) {
  const Outcome outcome = run(4, [](World& world) {
    world.all().barrier("start");
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * world.rank()));
    throw make_error(Code::kConfig, "config/x", "fault of rank {}", world.rank());
  });
  EXPECT_EQ(outcome.error->message(), "fault of rank 0");
  EXPECT_EQ(outcome.consequences.size(), 3U);
}

TEST(Failures, AbortFromOutsideEndsTheJob) {
  const Outcome outcome = run(2, [](World& world) {
    if (world.rank() == 0) {
      world.abort(make_error(Code::kPreempted, "app/signal", "interrupted"));
      world.abort(make_error(Code::kInternal, "app/signal", "second"));
    }
    world.all().barrier("wait");
  });
  EXPECT_EQ(outcome.error->code(), Code::kPreempted);
}

// A thread cannot be killed: the process leaves, with the code of the cause where the caller does nothing else.
TEST(FailuresDeathTest, StuckRankEndsTheProcess) {
  const auto body = [](World& world) {
    if (world.rank() == 0) throw make_error(Code::kData, "data", "row 3 is bad");
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  const WorldOptions options{.stuck_after = std::chrono::milliseconds(50)};
  EXPECT_EXIT(run_threads(2, options, body), ::testing::ExitedWithCode(11), "row 3 is bad");
  EXPECT_EXIT(
      run_threads(2, options, body, [](const Error& cause) { std::_Exit(cause.message() == "row 3 is bad" ? 42 : 1); }),
      ::testing::ExitedWithCode(42), "");
}

// One call of each kind, on two groups, some in flight together.
void call_everything(World& world) {
  const auto pair = world.make_group("pair", {{0, 1}, {2, 3}});
  const std::vector<int64_t> lens(4, 50);
  std::vector<float> local(50, 1.0F);
  std::vector<float> full(200, 1.0F);
  std::vector<float> large(20000, 1.0F);
  const auto gather = world.all().all_gather_async({{.local = local.data(), .full = full.data(), .lens = lens}}, "g");
  const auto sums = pair->all_reduce_async({{.data = large.data(), .count = 20000}}, ReduceOp::kSum, "r");
  gather->wait();
  world.all().reduce_scatter({{.full = full.data(), .local = local.data(), .lens = lens}}, "s");
  sums->wait();
  world.all().exchange_counts(lens, "counts");
  pair->all_gather_text("text", "t");
  world.all().broadcast(std::as_writable_bytes(std::span(full)), 3, "b");
  world.all().barrier("end");
}

// A rank throws at every point inside collectives in turn: its error ends the job, nobody hangs or reads freed memory.
TEST(Failures, FaultsAtEveryPointInsideCollectives) {
  int num_thrown = 0;
  for (const char* point : {"comm.post", "comm.wait"}) {
    for (int rank = 0; rank < 4; ++rank) {
      for (int hit = 1; hit <= 9; ++hit) {
        base::configure_faults(fmt::format("{}:rank={}:hit={}:do=throw", point, rank, hit));
        const Outcome outcome = run(4, call_everything);
        ASSERT_TRUE(outcome.error) << point << " hit " << hit << " of rank " << rank;
        EXPECT_EQ(outcome.error->rank(), rank) << outcome.error->text();
        EXPECT_NE(outcome.error->code(), Code::kPeerLost);
        EXPECT_LT(outcome.seconds, kSoon);
        ++num_thrown;
      }
    }
  }
  base::configure_faults("");
  EXPECT_EQ(num_thrown, 72);
}

TEST(Failures, DifferentPartitionsAreFound) {
  const Outcome outcome = run(2, [](World& world) {
    world.make_group(
        "axis", world.rank() == 0 ? std::vector<std::vector<int>>{{0, 1}} : std::vector<std::vector<int>>{{0}, {1}});
  });
  EXPECT_EQ(outcome.error->code(), Code::kInternal);
  EXPECT_THAT(outcome.error->message(), HasSubstr("make_group axis"));
  const Outcome no_partition = run(2, [](World& world) { world.make_group("axis", {{0}}); });
  EXPECT_THAT(no_partition.error->message(), HasSubstr("rank 1 is in no group"));
}

}  // namespace
}  // namespace expertmesh::comm
