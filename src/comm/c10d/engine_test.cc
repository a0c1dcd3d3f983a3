// SPDX-License-Identifier: Apache-2.0
// The suite over processes, equality with the threads engine, and what happens when a process fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mesh.h"
#include "comm/testing/processes.h"
#include "comm/testing/soon.h"
#include "comm/testing/suite.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

using base::Code;
using base::make_error;
using testing::Check;
using ::testing::HasSubstr;
using testing::kSoon;
using testing::ProcessResult;
using testing::run_processes;

WorldOptions test_options() {
  WorldOptions options;
  options.timeout = std::chrono::seconds(300);
  options.setup_timeout = std::chrono::seconds(300);
  return options;
}

// Joins and runs the body as the app does: the exit code and the printed line are those of the cause.
int run_joined(const std::function<void(World&)>& body, const WorldOptions& options = test_options()) {
  try {
    const auto world = try_join_launcher(options);
    if (!world) return 98;
    run_rank(*world, options, body);
    return 0;
  } catch (const base::Error& error) {
    std::fprintf(stderr, "%s [rank %d]\n", error.text().c_str(), error.rank().value_or(-1));
    return static_cast<int>(error.code());
  }
}

std::vector<ProcessResult> run_ranks(int size, const std::function<void(World&)>& body,
                                     const WorldOptions& options = test_options()) {
  return run_processes(size, [&](int) { return run_joined(body, options); });
}

void expect_all_ok(const std::vector<ProcessResult>& results) {
  for (const ProcessResult& result : results) EXPECT_EQ(result.code, 0) << result.output;
}

class Processes : public ::testing::TestWithParam<int> {};

TEST_P(Processes, Suite) {
  expect_all_ok(run_ranks(GetParam(), [](World& world) {
    EXPECT_EQ(world.engine(), world.size() == 1 ? "single" : "gloo");
    for (const Check& check : testing::all_checks()) {
      SCOPED_TRACE(check.name);
      check.run(world);
    }
  }));
}

TEST_P(Processes, EqualToThreadsToTheBit) {
  uint64_t wanted = 0;
  run_threads(GetParam(), {}, [&](World& world) {
    const uint64_t hash = testing::digest(world);
    if (world.rank() == 0) wanted = hash;
  });
  expect_all_ok(run_ranks(GetParam(), [wanted](World& world) { EXPECT_EQ(testing::digest(world), wanted); }));
}

INSTANTIATE_TEST_SUITE_P(Gloo, Processes, ::testing::Values(1, 2, 3));

TEST(ProcessMeshes, FourRanks) {
  expect_all_ok(run_ranks(4, [](World& world) {
    EXPECT_EQ(world.local_size(), 4);
    EXPECT_EQ(world.local_rank(), world.rank());
    const auto meshes = Meshes::build(world, make_topology(4, {.ep_size = 2}));
    const int64_t wanted = meshes->ep().members()[0] + meshes->ep().members()[1];
    EXPECT_EQ(meshes->ep().all_reduce_int(world.rank(), ReduceOp::kSum, "ep"), wanted);
    EXPECT_EQ(meshes->mp_shard().all_reduce_int(1, ReduceOp::kSum, "fsdp"), 4);
  }));
}

TEST(ProcessFailures, ThrowingRankEndsAllWithItsCause) {
  const auto results = run_ranks(3, [](World& world) {
    world.all().barrier("start");
    if (world.rank() == 1) throw make_error(Code::kData, "data/row", "row 7 is bad").at("rows.jsonl:7");
    world.all().all_reduce_int(1, ReduceOp::kSum, "loss");
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 11) << result.output;
    EXPECT_THAT(result.output, HasSubstr("rows.jsonl:7: row 7 is bad"));
    EXPECT_THAT(result.output, HasSubstr("[rank 1]"));
    EXPECT_LT(result.seconds, kSoon);
  }
}

TEST(ProcessFailures, RankZeroServesTheStoreAndFails) {
  const auto results = run_ranks(3, [](World& world) {
    world.all().barrier("start");
    if (world.rank() == 0) throw make_error(Code::kModel, "model/weights", "tensor x is missing");
    world.all().barrier("next");
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 12) << result.output;
    EXPECT_THAT(result.output, HasSubstr("tensor x is missing"));
  }
}

TEST(ProcessFailures, UnwindingWithWorkInFlight) {
  const auto results = run_ranks(2, [](World& world) {
    std::vector<float> data(100000, 1.0F);
    const auto work = world.all().all_reduce_async({{.data = data.data(), .count = 100000}}, ReduceOp::kSum, "grads");
    if (world.rank() == 1) throw make_error(Code::kNumerics, "train/loss", "loss is NaN");
    const auto second = world.all().all_reduce_async({{.data = data.data(), .count = 10}}, ReduceOp::kSum, "more");
    work->wait();
    second->wait();
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 17) << result.output;
    EXPECT_THAT(result.output, HasSubstr("loss is NaN"));
  }
}

TEST(ProcessFailures, KilledRankIsNamed) {
  for (const int victim : {0, 2}) {
    const auto results = run_ranks(3, [victim](World& world) {
      world.all().barrier("start");
      if (world.rank() == victim) kill(getpid(), SIGKILL);
      world.all().all_reduce_int(1, ReduceOp::kSum, "loss");
    });
    for (int rank = 0; rank < 3; ++rank) {
      const ProcessResult& result = results[static_cast<size_t>(rank)];
      EXPECT_EQ(result.code, rank == victim ? 128 + SIGKILL : 15) << result.output;
      EXPECT_LT(result.seconds, kSoon);
      if (rank != victim && victim != 0) {
        EXPECT_THAT(result.output, HasSubstr("rank 2 (process "));
      }
    }
  }
}

TEST(ProcessFailures, ReturningEarly) {
  const auto results = run_ranks(2, [](World& world) {
    world.all().barrier("together");
    if (world.rank() == 1) return;
    world.all().barrier("step 5");
  });
  EXPECT_EQ(results[0].code, 70) << results[0].output;
  EXPECT_THAT(results[0].output,
              HasSubstr("rank 1 ended its work while axis world: rank 0 waits in barrier #2 (step 5)"));
  EXPECT_LT(results[0].seconds, kSoon);
}

TEST(ProcessFailures, DifferentCallsAreNamed) {
  const auto results = run_ranks(2, [](World& world) {
    world.all().barrier("start");
    world.ledger().set_step(40, 0);
    float values[64] = {};
    if (world.rank() == 0) {
      world.all().all_reduce({{.data = values, .count = 64}}, ReduceOp::kSum, "layer 3 norm");
    } else {
      world.all().barrier("layer 3 dispatch");
    }
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 70) << result.output;
    EXPECT_THAT(result.output, HasSubstr("collective #2 of axis world in step 40: "));
    EXPECT_THAT(result.output, HasSubstr("rank 0 calls all_reduce \"layer 3 norm\""));
    EXPECT_THAT(result.output, HasSubstr("rank 1 calls barrier \"layer 3 dispatch\""));
    EXPECT_LT(result.seconds, kSoon);
  }
}

TEST(ProcessFailures, DifferentTagsOfEqualSizeAreNamed) {
  const auto results = run_ranks(
      2, [](World& world) { world.all().all_reduce_int(1, ReduceOp::kSum, world.rank() == 0 ? "loss" : "norm"); });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 70) << result.output;
    EXPECT_THAT(result.output, HasSubstr("\"loss\""));
    EXPECT_THAT(result.output, HasSubstr("\"norm\""));
  }
}

TEST(ProcessFailures, DifferentKindsOfRoute) {
  const auto results = run_ranks(2, [](World& world) {
    const std::vector<int64_t> one = {1, 1};
    const int64_t send[2] = {1, 2};
    int64_t recv[2] = {};
    if (world.rank() == 0) {
      world.all().all_to_all({.send = send, .send_counts = one, .recv = recv, .recv_counts = one, .row_bytes = 8},
                             "dispatch");
    } else {
      world.all().barrier("end");
    }
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 70) << result.output;
    EXPECT_THAT(result.output, HasSubstr("all_to_all \"dispatch\""));
    EXPECT_THAT(result.output, HasSubstr("barrier \"end\""));
  }
}

TEST(ProcessFailures, WrongExchangeCountsAreFound) {
  const auto results = run_ranks(2, [](World& world) {
    const std::vector<int64_t> send = {1, 1};
    const std::vector<int64_t> recv = {1, world.rank() == 0 ? 2 : 1};
    const std::vector<uint8_t> from(2000);
    std::vector<uint8_t> to(3000);
    world.all().all_to_all(
        {.send = from.data(), .send_counts = send, .recv = to.data(), .recv_counts = recv, .row_bytes = 1000}, "rows");
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 70) << result.output;
    EXPECT_THAT(result.output,
                HasSubstr("all_to_all \"rows\" (rows of 1000 bytes) rank 1 sends 1 rows to rank 0, which expects 2"));
  }
}

TEST(ProcessFailures, TimeoutNamesTheMissingRank) {
  WorldOptions options = test_options();
  options.timeout = std::chrono::seconds(2);
  const auto results = run_ranks(
      2,
      [](World& world) {
        world.all().barrier("step 1");
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
        world.all().all_reduce_int(1, ReduceOp::kSum, "step 2 norm");
      },
      options);
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.code, 16) << result.output;
    EXPECT_THAT(result.output, HasSubstr("rank 0 waits in all_reduce #2 (step 2 norm)"));
    EXPECT_THAT(result.output, HasSubstr("rank 1 last finished barrier #1 (step 1) on axis world"));
    EXPECT_LT(result.seconds, kSoon);
  }
}

// A rank that computes for ever after an abort leaves by its monitor.
TEST(ProcessFailures, StuckRankLeaves) {
  WorldOptions options = test_options();
  options.stuck_after = std::chrono::milliseconds(300);
  const auto results = run_ranks(
      2,
      [](World& world) {
        world.all().barrier("start");
        if (world.rank() == 0) throw make_error(Code::kCheckpoint, "ckpt/save", "disk full");
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
      },
      options);
  EXPECT_EQ(results[1].code, 13) << results[1].output;
  EXPECT_THAT(results[1].output, HasSubstr("did not come back"));
  EXPECT_LT(results[1].seconds, kSoon);
}

TEST(ProcessSetup, MissingRanksAreListed) {
  WorldOptions options = test_options();
  options.setup_timeout = std::chrono::seconds(1);
  const auto results = run_processes(3, [&](int rank) {
    if (rank == 1) return 0;
    return run_joined([](World&) {}, options);
  });
  EXPECT_EQ(results[0].code, 14) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("rank 1 of 3 did not appear within 1.0 s"));
  EXPECT_EQ(results[2].code, 14);
  EXPECT_THAT(results[2].output, HasSubstr("rank 1 of 3 did not appear"));
}

TEST(ProcessSetup, PortInUse) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(testing::free_port()));
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  WorldOptions options = test_options();
  options.setup_timeout = std::chrono::seconds(2);
  const auto results = run_processes(2, [&](int rank) { return rank == 0 ? run_joined([](World&) {}, options) : 0; },
                                     {.port = ntohs(address.sin6_port)});
  EXPECT_EQ(results[0].code, 14);
  EXPECT_THAT(results[0].output, HasSubstr(std::to_string(ntohs(address.sin6_port)) + " on 127.0.0.1 is in use"));
  close(fd);
}

TEST(ProcessSetup, NobodyServes) {
  WorldOptions options = test_options();
  options.setup_timeout = std::chrono::seconds(1);
  const auto results = run_processes(2, [&](int rank) { return rank == 1 ? run_joined([](World&) {}, options) : 0; });
  EXPECT_EQ(results[1].code, 14) << results[1].output;
  EXPECT_THAT(results[1].output, HasSubstr("rank 1 finds nobody at 127.0.0.1:"));
}

// The store is served until the third process has met it, however late that one comes.
TEST(ProcessSetup, TwoProcessesOfOneRankAreRefused) {
  const WorldOptions options = test_options();
  using Count = std::atomic<int>;
  void* shared = mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Count& num_refused = *new (shared) Count(0);
  const auto results = run_processes(3, [&](int process) {
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", process == 0 ? "0" : "1", 1);
    const int code = run_joined(
        [&](World& world) {
          world.all().barrier("b");
          for (int i = 0; i < 600 && num_refused == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        },
        options);
    if (code != 0) ++num_refused;
    return code;
  });
  munmap(shared, sizeof(Count));
  EXPECT_EQ(results[0].code, 0) << results[0].output;
  const ProcessResult& refused = results[1].code == 0 ? results[2] : results[1];
  const ProcessResult& joined = results[1].code == 0 ? results[1] : results[2];
  EXPECT_EQ(joined.code, 0) << joined.output;
  EXPECT_EQ(refused.code, 14);
  EXPECT_THAT(refused.output, HasSubstr("two processes are rank 1"));
}

TEST(ProcessSetup, DisagreementsAreRefused) {
  WorldOptions options = test_options();
  options.setup_timeout = std::chrono::seconds(10);
  const auto sizes = run_processes(2, [&](int rank) {
    setenv("WORLD_SIZE", rank == 0 ? "2" : "3", 1);
    return run_joined([](World&) {}, options);
  });
  // Whoever looks first says so, and the others repeat it.
  for (const ProcessResult& result : sizes) {
    EXPECT_EQ(result.code, 14);
    EXPECT_THAT(result.output, ::testing::AnyOf(HasSubstr("rank 1 was told 3 ranks, rank 0 was told 2"),
                                                HasSubstr("rank 0 was told 2 ranks, rank 1 was told 3")));
  }
}

TEST(ProcessSetup, NoLauncherIsNoWorld) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(try_join_launcher({}), nullptr);
}

}  // namespace
}  // namespace expertmesh::comm
