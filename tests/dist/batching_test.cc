// SPDX-License-Identifier: Apache-2.0
// The batching strategies in training: documents that share a micro-batch, padded or packed, give the losses and
// gradients of documents trained one by one; ranks that read different numbers of samples stay in step.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "base/file.h"
#include "data/batch.h"
#include "harness.h"
#include "ops/product.h"
#include "train/layer_walk.h"
#include "train/token_batch.h"

namespace expertmesh::dist {
namespace {

using config::BatchingStrategy;

constexpr int kCutoff = 48, kMicroBatchSize = 2, kNumMicroBatch = 2, kSteps = 4, kVocabulary = 500;
constexpr BatchingStrategy kStrategies[] = {BatchingStrategy::kNormal, BatchingStrategy::kPaddingFree,
                                            BatchingStrategy::kDynamicBatching, BatchingStrategy::kDynamicPaddingFree};
constexpr const char* kModels[] = {"tiny_s0", "qwen3_5_whole"};  // one of each family

// Samples of 1, 2 and 3 tokens, some at the cutoff and beyond it; every fourth label is left out, and position 0 of
// each has a label, which is no target.
std::shared_ptr<const data::Dataset> mixed_dataset() {
  const auto dir = std::filesystem::temp_directory_path() / fmt::format("expertmesh-batching-{}", getpid());
  std::filesystem::create_directories(dir);
  std::mt19937 random(11);
  std::ofstream rows(dir / "rows.jsonl");
  const std::vector<int> lengths{3, 40, 1, 17, 2, 48, 9, 1, 60, 33, 8, 25, 3, 12, 90, 4, 19, 6, 2, 30, 5, 47, 1, 11};
  for (const int length : lengths) {
    std::string ids, labels;
    for (int t = 0; t < length; ++t) {
      const auto id = random() % kVocabulary;
      ids += fmt::format("{}{}", t == 0 ? "" : ", ", id);
      labels += fmt::format("{}{}", t == 0 ? "" : ", ", t % 4 == 3 ? -100 : static_cast<int>(id));
    }
    rows << fmt::format("{{\"input_ids\": [{}], \"labels\": [{}]}}\n", ids, labels);
  }
  rows.close();
  const std::string info = (dir / "info.yaml").string();
  std::ofstream(info) << fmt::format("rows:\n  path: {}\n  source: local\n  converter: tokenized\n",
                                     (dir / "rows.jsonl").string());
  data::DatasetOptions options;
  options.train_dataset = info;
  options.cutoff_len = kCutoff;
  options.drops_unsupervised = false;
  const auto fs = base::make_posix_file_system(base::Code::kData);
  auto dataset = data::Dataset::build(*fs, options);
  std::filesystem::remove_all(dir);
  return dataset;
}

const std::shared_ptr<const data::Dataset>& dataset() {
  static const auto kDataset = mixed_dataset();
  return kDataset;
}

// All steps of all ranks: [step][rank] -> its micro-batches.
using Plan = std::vector<std::vector<std::vector<data::MicroBatch>>>;

Plan plan_of(BatchingStrategy strategy, int ranks) {
  Plan plan(kSteps, std::vector<std::vector<data::MicroBatch>>(static_cast<size_t>(ranks)));
  for (int rank = 0; rank < ranks; ++rank) {
    data::BatchLoader loader(dataset(), {.dp_rank = rank,
                                         .dp_size = ranks,
                                         .micro_batch_size = kMicroBatchSize,
                                         .num_micro_batch = kNumMicroBatch,
                                         .seed = 42,
                                         .shuffle = true,
                                         .strategy = strategy,
                                         .cutoff_len = kCutoff});
    for (auto& step : plan) step[static_cast<size_t>(rank)] = loader.next_step();
  }
  return plan;
}

// The same samples on one rank, each a micro-batch of its own.
Plan one_by_one(const Plan& plan) {
  Plan separate;
  for (const auto& step : plan) {
    std::vector<data::MicroBatch> batches;
    for (const auto& rank : step) {
      for (const data::MicroBatch& batch : rank) {
        for (const int64_t sample : batch.samples) batches.push_back(data::collate({dataset()->sample(sample)}));
      }
    }
    separate.push_back({std::move(batches)});
  }
  return separate;
}

RunSpec spec_of(const std::string& model, const Plan& plan, const std::vector<std::string>& overrides) {
  RunSpec spec{
      .model_dir = golden_model(model),
      .steps = std::vector<Step>(plan.size()),
      .ranks = static_cast<int>(plan[0].size()),
      .overrides = {"bf16=false", "max_grad_norm=1.0", "learning_rate=0.05", "optim_config={\"name\":\"sgd\"}"},
      .micro_batches = 1,
      .batches = [&plan](int step, int dp_rank) { return plan[step][dp_rank]; },
      .after_step = {}};
  spec.overrides.insert(spec.overrides.end(), overrides.begin(), overrides.end());
  return spec;
}

std::string name_of(BatchingStrategy strategy) { return std::string(config::choice_name(strategy)); }

class Strategies : public testing::TestWithParam<std::tuple<const char*, BatchingStrategy>> {
 protected:
  const std::string model_ = std::get<0>(GetParam());
  const BatchingStrategy strategy_ = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(All, Strategies, testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(kStrategies)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + ("_" + name_of(std::get<1>(test.param)));
                         });

// Whether some rows of a product are those of all rows, to the bit.
bool rows_are_independent(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor whole = ops::product(a, b);
  for (const int64_t rows : {1, 4, 5, 8, 17}) {
    for (const int64_t first : {int64_t{0}, a.size(0) - rows}) {
      const at::Tensor part = ops::product(a.narrow(0, first, rows), b);
      if (!at::equal(part, whole.narrow(0, first, rows))) return false;
    }
  }
  return true;
}

// In fp32 with this processor's library, for the weights of both models, forward and backward.
bool rows_are_independent() {
  constexpr int64_t kRows = 64;
  using Shape = std::array<int64_t, 2>;
  for (const auto& [out, in] :
       {Shape{4, 64}, {8, 64}, {64, 64}, {128, 64}, {256, 64}, {512, 64}, {64, 32}, {64, 128}}) {
    const at::Tensor weight = at::randn({out, in});
    if (!rows_are_independent(at::randn({kRows, in}), weight.t())) return false;
    if (!rows_are_independent(at::randn({kRows, out}), weight)) return false;
  }
  return true;
}

// One rank, whatever computes the attention, in chunks of any size. Where a row of a product does not depend on the
// others, all gradients hold 1e-6 of the largest. Where it does, on some processors' libraries, that holds for most
// tensors only, and every tensor has as its bound what packs (1.3e-6 for tiny_s0, 2.2e-6 for qwen3_5_whole) and samples
// one by one (1.1e-6, 1.9e-6) were off from transformers in fp64 with such products, and a half more
// (docs/results/packing.md).
TEST_P(Strategies, EqualSeparateDocuments) {
  const Plan plan = plan_of(strategy_, 1), separate = one_by_one(plan);
  const bool has_delta_nets = model_.starts_with("qwen3_5"), is_exact = rows_are_independent();
  if (!is_exact) GTEST_LOG_(INFO) << "rows of this library's products depend on each other: wider bounds";
  for (const auto& [attention, chunk_size] : {std::pair{"eager", 64}, {"sdpa", 32}, {"flash_attention_2", 16}}) {
    std::vector<std::string> overrides{fmt::format("flash_attn={}", attention)};
    if (has_delta_nets) {
      overrides.push_back(
          fmt::format(R"(kernel_config={{"name":"auto, flash-linear-attention","chunk_size":{}}})", chunk_size));
    }
    const RunResult run = run_steps(spec_of(model_, plan, overrides)),
                    reference = run_steps(spec_of(model_, separate, overrides));
    Bounds bounds{.loss = 1e-6, .norm = 1e-6, .gradient = 1e-6, .weight = 1e-6};
    if (!is_exact) bounds.gradient = has_delta_nets ? 6e-6 : 3.6e-6;
    EXPECT_EQ(difference(run, reference, bounds), "") << attention << ", chunks of " << chunk_size;
    if (is_exact) continue;
    bounds.gradient = 1e-6;
    const std::string beyond = difference(run, reference, bounds);  // a line a tensor
    EXPECT_LE(std::count(beyond.begin(), beyond.end(), '\n'), static_cast<int64_t>(run.gradients.size()) / 3) << beyond;
  }
}

TEST_P(Strategies, GiveEveryTokenItsLossAlone) {
  const Plan plan = plan_of(strategy_, 1);
  int64_t compared = 0;
  RunSpec spec = spec_of(model_, plan, {"learning_rate=0", "flash_attn=flash_attention_2"});
  spec.after_step = [&](comm::World&, train::ShardedModel& model, int step, const train::StepResult&) {
    train::LayerWalk walk(model, /*recompute=*/false);
    const auto logprobs_of = [&](const data::MicroBatch& micro_batch) {
      const model::TokenBatch batch = train::make_token_batch(micro_batch);
      const at::Tensor logprobs_T = model.model().head().logprobs(walk.infer(batch), batch, model.runtime());
      const float* values = logprobs_T.const_data_ptr<float>();
      return std::vector<float>(values, values + logprobs_T.numel());
    };
    for (const data::MicroBatch& batch : plan[static_cast<size_t>(step - 1)][0]) {
      const std::vector<float> together = logprobs_of(batch);
      size_t at = 0;
      for (const int64_t sample : batch.samples) {
        for (const float alone : logprobs_of(data::collate({dataset()->sample(sample)}))) {
          ASSERT_LT(at, together.size());
          EXPECT_NEAR(together[at], alone, 1e-6 * std::max(1.0F, std::fabs(alone))) << "sample " << sample;
          ++at;
          ++compared;
        }
      }
      EXPECT_EQ(at, together.size());
    }
  };
  run_steps(spec);
  EXPECT_GT(compared, 4 * kSteps * kNumMicroBatch);
}

// Four ranks with samples of different lengths, so with different numbers of samples and tokens in each micro-batch:
// nobody waits for anybody, and the sum is that of the documents one by one on one rank.
TEST_P(Strategies, KeepRanksInStep) {
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{"dist_config={\"name\":\"fsdpturbo\",\"ep_size\":2}"},
        std::vector<std::string>{"dist_config={\"name\":\"fsdpturbo\",\"ep_size\":4}"},
        std::vector<std::string>{"dist_config={\"name\":\"fsdp2\"}", "mp_replicate_size=2"}}) {
    const Plan plan = plan_of(strategy_, 4), separate = one_by_one(plan);
    EXPECT_EQ(difference(run_steps(spec_of(model_, plan, mesh)), run_steps(spec_of(model_, separate, {}))), "")
        << mesh[0];
  }
}

TEST(DynamicStrategies, GiveRanksDifferentNumbersOfSamples) {
  for (const BatchingStrategy strategy : {BatchingStrategy::kDynamicBatching, BatchingStrategy::kDynamicPaddingFree}) {
    bool differs = false;
    for (const auto& step : plan_of(strategy, 4)) {
      for (const auto& rank : step) {
        ASSERT_EQ(rank.size(), static_cast<size_t>(kNumMicroBatch));
        differs = differs || rank[0].samples.size() != step[0][0].samples.size();
      }
    }
    EXPECT_TRUE(differs) << "the test above would show nothing";
  }
}

}  // namespace
}  // namespace expertmesh::dist
