// SPDX-License-Identifier: Apache-2.0
#include "comm/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "comm/wait_report.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

using ::testing::HasSubstr;

TEST(Ledger, KeepsTheNewest) {
  Ledger ledger;
  EXPECT_FALSE(ledger.last());
  EXPECT_FALSE(ledger.last_done());
  for (uint64_t i = 1; i <= Ledger::kEntries + 100; ++i) {
    const auto ticket = ledger.post("ep", i, Op::kAllToAll, base::DType::kBF16, 4, 8, "layer 1 dispatch");
    ledger.mark(ticket, Ledger::State::kWaiting);
    ledger.mark(ticket, Ledger::State::kDone);
  }
  const auto entries = ledger.entries();
  ASSERT_EQ(entries.size(), Ledger::kEntries);
  EXPECT_EQ(entries.front().sequence, 101U);
  EXPECT_EQ(entries.back().sequence, Ledger::kEntries + 100);
  EXPECT_EQ(ledger.count(), Ledger::kEntries + 100);
  // A ticket from before the ring went round changes nothing.
  ledger.mark(0, Ledger::State::kFailed);
  EXPECT_EQ(ledger.entries().front().state, Ledger::State::kDone);
}

TEST(Ledger, LongNamesAreCut) {
  Ledger ledger;
  ledger.post(std::string(100, 'a'), 1, Op::kBarrier, base::DType::kU8, 0, 0, std::string(1000, 't'));
  EXPECT_EQ(ledger.last()->axis_text(), std::string(23, 'a'));
  EXPECT_EQ(ledger.last()->tag_text(), std::string(55, 't'));
}

TEST(Ledger, JsonAndText) {
  Ledger ledger;
  ledger.set_step(40, 1);
  const auto ticket = ledger.post("efsdp", 811, Op::kAllGather, base::DType::kF32, 1000, 2000, "layer 17 \"experts\"");
  ledger.mark(ticket, Ledger::State::kDone);
  ledger.post("ep", 812, Op::kAllToAll, base::DType::kU8, 5, 640, "layer 17 combine");
  const base::Json json = base::parse_json(ledger.to_json(2));
  EXPECT_EQ(json.find("rank")->try_int64(), 2);
  const base::Json::Array& entries = *json.find("entries")->try_array();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(*entries[0].find("axis")->try_string(), "efsdp");
  EXPECT_EQ(*entries[0].find("tag")->try_string(), "layer 17 \"experts\"");
  EXPECT_EQ(entries[0].find("bytes")->try_int64(), 2000);
  EXPECT_EQ(*entries[0].find("state")->try_string(), "done");
  EXPECT_EQ(entries[1].find("step")->try_int64(), 40);
  EXPECT_EQ(entries[1].find("micro_batch")->try_int64(), 1);
  EXPECT_EQ(ledger.to_text(2, 1), "rank 2 axis ep: all_to_all #812 (layer 17 combine, step 40) U8 640 bytes, posted\n");
}

TEST(Ledger, WordsAboutARank) {
  Ledger ledger;
  const WaitPlace place{"ep", 2, Op::kAllToAll, 812, "layer 17 combine"};
  EXPECT_EQ(waits_text(place), "axis ep: rank 2 waits in all_to_all #812 (layer 17 combine)");
  const WaitPlace in_step{"ep", 2, Op::kAllToAll, 812, "layer 17 combine", 40};
  EXPECT_EQ(waits_text(in_step), "axis ep: rank 2 waits in all_to_all #812 (layer 17 combine, step 40)");
  EXPECT_EQ(mismatch_error(place, "x").message(), "ranks differ in collective #812 of axis ep: x");
  EXPECT_EQ(mismatch_error(in_step, "x").message(), "ranks differ in collective #812 of axis ep in step 40: x");
  EXPECT_EQ(missing_text(0, ledger, place), "rank 0 has finished no collective yet and never entered #812");
  const auto first = ledger.post("efsdp", 811, Op::kAllGather, base::DType::kF32, 1, 4, "x");
  ledger.mark(first, Ledger::State::kDone);
  EXPECT_THAT(missing_text(0, ledger, place),
              HasSubstr("rank 0 last finished all_gather #811 (x) on axis efsdp 0.0 s ago"));
  const auto second = ledger.post("dp", 3, Op::kBarrier, base::DType::kU8, 0, 0, "y");
  ledger.mark(second, Ledger::State::kWaiting);
  EXPECT_THAT(missing_text(0, ledger, place), HasSubstr("rank 0 waits in barrier #3 (y) on axis dp"));
}

TEST(Ledger, RecordsWhatARankCalls) {
  run_threads(2, {}, [](World& world) {
    const auto group = world.make_group("ep", {{0, 1}});
    std::vector<uint16_t> data(6);
    group->all_reduce({{.data = data.data(), .count = 6, .dtype = DType::kBF16}}, ReduceOp::kSum, "tokens");
    const auto entry = world.ledger().last();
    ASSERT_TRUE(entry);
    EXPECT_EQ(describe(*entry), "all_reduce #1 (tokens)");
    EXPECT_EQ(entry->axis_text(), "ep");
    EXPECT_EQ(entry->dtype, DType::kBF16);
    EXPECT_EQ(entry->elements, 6);
    EXPECT_EQ(entry->bytes, 12);
    EXPECT_EQ(entry->state, Ledger::State::kDone);
    EXPECT_LE(entry->posted, entry->started);
    EXPECT_LE(entry->started, entry->ended);
  });
}

}  // namespace
}  // namespace expertmesh::comm
