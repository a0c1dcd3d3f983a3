// SPDX-License-Identifier: Apache-2.0
#include "data/batch.h"

#include <gmock/gmock.h>

#include <set>

#include "data/sampler.h"
#include "data/testing.h"

namespace expertmesh::data {
namespace {

using config::BatchingStrategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

// `count` tokenized rows; row i holds i + 2 tokens with id i and is supervised but for its first token.
std::string rows(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string ids = fmt::format("{}", i), labels = "-100";
    for (int t = 0; t <= i; ++t) {
      ids += fmt::format(", {}", i);
      labels += fmt::format(", {}", i);
    }
    text += fmt::format("{{\"input_ids\": [{}], \"labels\": [{}]}}\n", ids, labels);
  }
  return text;
}

LoaderOptions options(int rank, int ranks, int micro, int num_micro, bool shuffle = true) {
  return {.dp_rank = rank,
          .dp_size = ranks,
          .micro_batch_size = micro,
          .num_micro_batch = num_micro,
          .seed = 42,
          .shuffle = shuffle,
          .strategy = BatchingStrategy::kNormal,
          .cutoff_len = 2048};
}

TEST(BatchLoader, StepsFollowTheSampler) {
  const TempDir dir;
  const auto dataset = testing::build_tokenized(dir, rows(10));
  const auto permutation = epoch_permutation(10, 42, 0, true);
  std::vector<int64_t> seen;
  for (int rank = 0; rank < 2; ++rank) {
    BatchLoader loader(dataset, options(rank, 2, 2, 1));
    EXPECT_EQ(loader.steps_per_epoch(), 2);
    std::vector<int64_t> order = rank_order(permutation, 2, rank);
    order.resize(4);  // the fifth fills no step
    std::vector<int64_t> got;
    for (int step = 0; step < 2; ++step) {
      const auto batches = loader.next_step();
      ASSERT_EQ(batches.size(), 1U);
      got.insert(got.end(), batches[0].samples.begin(), batches[0].samples.end());
      EXPECT_EQ(batches[0].input_ids[0], batches[0].samples[0]);
      EXPECT_EQ(batches[0].width, *std::ranges::max_element(batches[0].lengths));
    }
    EXPECT_EQ(got, order);
  }
}

TEST(BatchLoader, MicroBatchesOfAStepAreConsecutive) {
  const TempDir dir;
  BatchLoader loader(testing::build_tokenized(dir, rows(8)), options(0, 1, 2, 2, false));
  const auto step = loader.next_step();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_THAT(step[0].samples, ElementsAre(0, 1));
  EXPECT_THAT(step[1].samples, ElementsAre(2, 3));
  EXPECT_EQ(step[1].width, 5);  // each micro batch has its own width
}

TEST(BatchLoader, GoesOnIntoTheNextEpoch) {
  const TempDir dir;
  BatchLoader loader(testing::build_tokenized(dir, rows(5)), options(0, 1, 2, 1));
  std::vector<int64_t> epochs;
  std::multiset<int64_t> first, second;
  for (int step = 0; step < 4; ++step) {
    const auto batch = loader.next_step()[0];
    epochs.push_back(loader.epoch());
    (step < 2 ? first : second).insert(batch.samples.begin(), batch.samples.end());
  }
  EXPECT_THAT(epochs, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 4U);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 4U);
}

TEST(BatchLoader, RestoredStateGoesOnAsUninterrupted) {
  const TempDir dir;
  const auto dataset = testing::build_tokenized(dir, rows(9));
  BatchLoader whole(dataset, options(1, 2, 1, 2));
  std::vector<std::vector<int64_t>> samples;
  std::vector<LoaderState> states;
  for (int step = 0; step < 7; ++step) {
    states.push_back(whole.state());
    samples.push_back(whole.next_step()[1].samples);
  }
  for (size_t from = 0; from < states.size(); ++from) {
    BatchLoader resumed(dataset, options(1, 2, 1, 2));
    resumed.restore(states[from]);
    for (size_t step = from; step < samples.size(); ++step) {
      EXPECT_EQ(resumed.next_step()[1].samples, samples[step]) << from << " " << step;
      EXPECT_EQ(resumed.state(), step + 1 < states.size() ? states[step + 1] : whole.state());
    }
  }
}

// A loader that could yield nothing is a data error at once.
TEST(Row34, TooFewSamplesIsAnError) {
  const TempDir dir;
  const auto dataset = testing::build_tokenized(dir, rows(7));
  const base::Error error = testing::error_of([&] { BatchLoader(dataset, options(0, 4, 1, 2)); });
  EXPECT_EQ(error.code(), base::Code::kData);
  EXPECT_THAT(error.text(), HasSubstr("7 samples"));
  EXPECT_THAT(error.text(), HasSubstr("need 8"));
  EXPECT_NO_THROW(BatchLoader(dataset, options(0, 7, 1, 1)));
}

// Rows over the cutoff of 3 tokens with their targets behind it are dropped; short rows never are.
std::string mixed_rows(const std::string& pattern) {
  std::string text;
  for (const char kind : pattern) {
    text += kind == 'x' ? "{\"input_ids\": [1, 2, 3, 4], \"labels\": [-100, -100, -100, 4]}\n"
                        : "{\"input_ids\": [5, 6], \"labels\": [-100, 6]}\n";
  }
  return text;
}

// The epoch ends on all ranks with the first one that runs out of samples.
TEST(Row35, DropsEndTheEpochForAllRanks) {
  const TempDir dir;
  // Unshuffled on 2 ranks: rank 0 reads the even rows, of which two are dropped.
  const auto uneven = testing::build_tokenized(dir, mixed_rows("xoxooooooooo"), 3);
  EXPECT_EQ(uneven->summary().dropped, 2);
  for (int rank = 0; rank < 2; ++rank) {
    BatchLoader loader(uneven, options(rank, 2, 1, 1, false));
    EXPECT_EQ(loader.steps_per_epoch(), 6);
    EXPECT_EQ(loader.steps_in_epoch(0), 4);
    for (int step = 0; step < 4; ++step) {
      loader.next_step();
      EXPECT_EQ(loader.epoch(), 0);
    }
    loader.next_step();
    EXPECT_EQ(loader.epoch(), 1);
  }
}

TEST(Row35, AnEpochWithoutStepsIsAnError) {
  const TempDir dir;
  const auto dataset = testing::build_tokenized(dir, mixed_rows("xoxo"), 3);
  for (int rank = 0; rank < 2; ++rank) {
    BatchLoader loader(dataset, options(rank, 2, 1, 1, false));
    const base::Error error = testing::error_of([&] { loader.next_step(); });
    EXPECT_EQ(error.code(), base::Code::kData);
    EXPECT_THAT(error.text(), HasSubstr("cutoff_len"));
  }
}

// CP-16, `normal`: only samples longer than the cutoff are looked at.
TEST(UnsupervisedRows, DropsAsUpstream) {
  const base::Json input = testing::read_json(testing::source_path("tests/cases/values/unsupervised_rows.json"));
  const base::Json& values = *input.find("input");
  std::string text;
  for (const base::Json& weights : *values.find("loss_weights")->try_array()) {
    std::string ids, labels;
    for (const base::Json& weight : *weights.try_array()) {
      ids += ids.empty() ? "1" : ", 1";
      labels += (labels.empty() ? "" : ", ") + std::string(*weight.try_double() > 0 ? "1" : "-100");
    }
    text += fmt::format("{{\"input_ids\": [{}], \"labels\": [{}]}}\n", ids, labels);
  }
  const TempDir dir;
  const auto dataset = testing::build_tokenized(dir, text, static_cast<int>(*values.find("cutoff_len")->try_int64()));
  base::Json::Array kept;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    if (!dataset->is_dropped(i)) kept.emplace_back(i);
  }
  const base::Json expected = testing::read_json(testing::source_path("tests/cases/values/expected.json"));
  EXPECT_EQ(base::Json(kept), *expected.find("unsupervised_rows.json")->find("ok")->find("kept"));
}

}  // namespace
}  // namespace expertmesh::data
