// SPDX-License-Identifier: Apache-2.0
// The batching strategies beside `normal`: which samples meet in a micro batch, on which rank and in which step.
#include <gmock/gmock.h>

#include "data/batch.h"
#include "data/sampler.h"
#include "data/testing.h"

namespace expertmesh::data {
namespace {

using config::BatchingStrategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

constexpr BatchingStrategy kDynamicOnes[] = {BatchingStrategy::kDynamicBatching, BatchingStrategy::kDynamicPaddingFree};

// One row a length, all supervised; every token of row i is i.
std::string rows_of(const std::vector<int>& lengths) {
  std::string text;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::string ids = fmt::format("{}", i);
    for (int t = 1; t < lengths[i]; ++t) ids += fmt::format(", {}", i);
    text += fmt::format("{{\"input_ids\": [{0}], \"labels\": [{0}]}}\n", ids);
  }
  return text;
}

std::shared_ptr<const Dataset> build(const TempDir& dir, const std::string& rows, int cutoff_len) {
  return testing::build_tokenized(dir, rows, cutoff_len, "", /*drops_unsupervised=*/false);
}

LoaderOptions options_of(BatchingStrategy strategy, int cutoff_len, int micro = 2, int num_micro = 1) {
  return {.dp_rank = 0,
          .dp_size = 1,
          .micro_batch_size = micro,
          .num_micro_batch = num_micro,
          .seed = 42,
          .shuffle = false,
          .strategy = strategy,
          .cutoff_len = cutoff_len};
}

const std::vector<int> kMixed = {3, 40, 1, 17, 2, 9, 33, 8, 1, 25, 3, 12, 50, 4, 19, 6, 2};

TEST(PaddingFree, GroupsAsNormalAndPacks) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of(kMixed), 20);
  LoaderOptions options = options_of(BatchingStrategy::kNormal, 20, 2, 2);
  options.shuffle = true;
  BatchLoader normal(dataset, options);
  options.strategy = BatchingStrategy::kPaddingFree;
  BatchLoader packed(dataset, options);
  EXPECT_EQ(packed.steps_per_epoch(), 4);
  for (int step = 0; step < 9; ++step) {
    const auto padded_step = normal.next_step(), packed_step = packed.next_step();
    EXPECT_EQ(packed.epoch(), normal.epoch());
    ASSERT_EQ(packed_step.size(), 2U);
    for (size_t micro = 0; micro < 2; ++micro) {
      EXPECT_EQ(packed_step[micro].samples, padded_step[micro].samples);
      EXPECT_EQ(packed_step[micro].lengths, padded_step[micro].lengths);
      EXPECT_EQ(packed_step[micro].targets, padded_step[micro].targets);
      EXPECT_EQ(packed_step[micro].rows, 1);
      EXPECT_EQ(packed_step[micro].width, padded_step[micro].tokens);
    }
  }
}

// Only `normal` leaves out what the cut leaves without a target.
TEST(PaddingFree, KeepsSamplesWithoutATarget) {
  const TempDir dir;
  const std::string text =
      "{\"input_ids\": [1, 2, 3, 4], \"labels\": [-100, -100, -100, 4]}\n{\"input_ids\": [5, 6], \"labels\": [-100, "
      "6]}\n";
  const auto dataset = build(dir, text, 3);
  EXPECT_EQ(dataset->summary().dropped, 0);
  EXPECT_EQ(dataset->summary().without_target, 1);
  BatchLoader loader(dataset, options_of(BatchingStrategy::kPaddingFree, 3));
  const MicroBatch batch = loader.next_step()[0];
  EXPECT_THAT(batch.samples, ElementsAre(0, 1));
  EXPECT_THAT(batch.input_ids, ElementsAre(1, 2, 3, 5, 6));
  EXPECT_EQ(batch.targets, 1);
}

// CP-16 and spec 7.5, through the loader.
TEST(Dynamic, FillsAsUpstream) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of({3, 4, 6, 2, 8, 9}), 10);
  BatchLoader padded(dataset, options_of(BatchingStrategy::kDynamicBatching, 10));
  const MicroBatch first = padded.next_step()[0];
  EXPECT_THAT(first.samples, ElementsAre(0, 1, 2));
  EXPECT_EQ(first.rows, 3);
  EXPECT_EQ(first.width, 6);
  EXPECT_EQ(first.input_ids[3], 0);
  EXPECT_EQ(first.labels[3], kIgnoredLabel);
  EXPECT_THAT(padded.next_step()[0].samples, ElementsAre(3, 4));  // 3 x 9 would be 27

  BatchLoader packed(dataset, options_of(BatchingStrategy::kDynamicPaddingFree, 10));
  const MicroBatch four = packed.next_step()[0];
  EXPECT_THAT(four.samples, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(four.rows, 1);
  EXPECT_EQ(four.width, 15);
  for (const size_t at : {3U, 7U, 13U}) EXPECT_EQ(four.labels[at], kIgnoredLabel);
  EXPECT_THAT(packed.next_step()[0].samples, ElementsAre(4, 5, 0));  // on into the next pass
}

// A set that does not fill one micro batch is read over and over within it.
TEST(Dynamic, RefillsFromTheNextPass) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of({6}), 10);
  for (const BatchingStrategy strategy : kDynamicOnes) {
    BatchLoader loader(dataset, options_of(strategy, 10, 2, 2));
    for (int step = 0; step < 3; ++step) {
      const auto batches = loader.next_step();
      ASSERT_EQ(batches.size(), 2U);
      for (const MicroBatch& batch : batches) EXPECT_THAT(batch.samples, ElementsAre(0, 0, 0));
      const bool is_packed = strategy == BatchingStrategy::kDynamicPaddingFree;
      EXPECT_EQ(batches[0].rows, is_packed ? 1 : 3);
      EXPECT_EQ(batches[0].width, is_packed ? 18 : 6);
    }
  }
}

TEST(Dynamic, CutsLongSamplesAtTheCutoff) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of({100, 100, 4}), 10);
  BatchLoader padded(dataset, options_of(BatchingStrategy::kDynamicBatching, 10, 1));
  const MicroBatch batch = padded.next_step()[0];
  EXPECT_THAT(batch.samples, ElementsAre(0));
  EXPECT_EQ(batch.width, 10);
  BatchLoader packed(dataset, options_of(BatchingStrategy::kDynamicPaddingFree, 10, 2));
  EXPECT_THAT(packed.next_step()[0].samples, ElementsAre(0, 1));
  EXPECT_THAT(packed.next_step()[0].samples, ElementsAre(2, 0));
}

// Every rank reads its own share in order, pass after pass, nothing left out and nothing twice in a pass; all give the
// same number of micro batches however many samples these take.
TEST(Dynamic, RanksReadTheirOrderWithoutGaps) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of(kMixed), 20);
  const auto permutation = epoch_permutation(dataset->size(), 42, 0, true);
  for (const BatchingStrategy strategy : kDynamicOnes) {
    std::vector<size_t> taken;
    for (int rank = 0; rank < 3; ++rank) {
      LoaderOptions options = options_of(strategy, 20, 1, 3);
      options.shuffle = true;
      options.dp_rank = rank;
      options.dp_size = 3;
      BatchLoader loader(dataset, options);
      const auto order = rank_order(permutation, 3, rank);
      size_t at = 0;
      for (int step = 0; step < 40; ++step) {
        const auto batches = loader.next_step();
        ASSERT_EQ(batches.size(), 3U);
        for (const MicroBatch& batch : batches) {
          EXPECT_LE(batch.rows * batch.width, 20);
          for (const int64_t sample : batch.samples) EXPECT_EQ(sample, order[at++ % order.size()]);
        }
        EXPECT_EQ(loader.epoch(), 0);
      }
      taken.push_back(at);
    }
    EXPECT_FALSE(taken[0] == taken[1] && taken[1] == taken[2]) << "the ranks' samples should differ in length";
  }
}

TEST(Dynamic, RestoredStateGoesOnAsUninterrupted) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of(kMixed), 20);
  for (const BatchingStrategy strategy : kDynamicOnes) {
    LoaderOptions options = options_of(strategy, 20, 2, 2);
    options.dp_size = 2;
    options.dp_rank = 1;
    options.shuffle = true;
    BatchLoader whole(dataset, options);
    std::vector<std::vector<int64_t>> samples;
    for (int step = 0; step < 12; ++step) {
      EXPECT_EQ(whole.state(), (LoaderState{0, step}));
      samples.push_back(whole.next_step()[1].samples);
    }
    BatchLoader resumed(dataset, options);
    for (const size_t from : {7U, 0U, 11U}) {  // one loader, moved to and fro
      resumed.restore({0, static_cast<int64_t>(from)});
      for (size_t step = from; step < samples.size(); ++step) EXPECT_EQ(resumed.next_step()[1].samples, samples[step]);
    }
  }
}

// Upstream's length rounds up here; the epoch itself has no end.
TEST(Dynamic, HasNoEndOfAnEpoch) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of({2, 2, 2, 2, 2}), 4);
  BatchLoader loader(dataset, options_of(BatchingStrategy::kDynamicBatching, 4, 2, 1));
  EXPECT_EQ(loader.steps_per_epoch(), 3);
  EXPECT_GT(loader.steps_in_epoch(0), int64_t{1} << 60);
  for (int step = 0; step < 100; ++step) loader.next_step();
  EXPECT_EQ(loader.epoch(), 0);
}

TEST(Dynamic, FewerSamplesThanRanksIsAnError) {
  const TempDir dir;
  const auto dataset = build(dir, rows_of({2, 3}), 10);
  for (const BatchingStrategy strategy : kDynamicOnes) {
    LoaderOptions options = options_of(strategy, 10);
    options.dp_size = 3;
    const base::Error error = testing::error_of([&] { BatchLoader(dataset, options); });
    EXPECT_EQ(error.code(), base::Code::kData);
    EXPECT_THAT(error.text(), HasSubstr("2 samples for 3 data-parallel ranks"));
    options.dp_size = 2;
    EXPECT_NO_THROW(BatchLoader(dataset, options).next_step());
  }
}

// The one row with a target is what two ranks leave over, in every pass: an error on both, not a run of skipped steps.
TEST(Dynamic, NeverMeetingATargetIsAnError) {
  const TempDir dir;
  const std::string unsupervised = "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n";
  const auto dataset = build(dir, unsupervised + unsupervised + "{\"input_ids\": [1, 2], \"labels\": [-100, 2]}\n", 10);
  for (const BatchingStrategy strategy : kDynamicOnes) {
    for (int rank = 0; rank < 2; ++rank) {
      LoaderOptions options = options_of(strategy, 10);
      options.dp_size = 2;
      options.dp_rank = rank;
      BatchLoader loader(dataset, options);
      const base::Error error = testing::error_of([&] { loader.next_step(); });
      EXPECT_EQ(error.code(), base::Code::kData);
      EXPECT_THAT(error.text(), HasSubstr("the same 2 of 3 samples"));
    }
    EXPECT_NO_THROW(BatchLoader(dataset, options_of(strategy, 10)).next_step());
  }
}

}  // namespace
}  // namespace expertmesh::data
