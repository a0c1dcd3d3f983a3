// SPDX-License-Identifier: Apache-2.0
// What is generated with caches is what whole forwards give, and no mesh, batch or neighbour changes it.
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "generate/generator.h"
#include "harness.h"
#include "ops/new_tensor.h"
#include "ops/rank_thread.h"
#include "train/build.h"
#include "train/token_batch.h"

namespace expertmesh::dist {
namespace {

using generate::Answer;
using generate::GeneratorOptions;
using generate::Prompt;
using Ids = std::vector<int32_t>;

constexpr int64_t kNewTokens = 12;
const std::vector<std::string> kModels{"small_s0", "qwen3_5_whole", "qwen3_5_odd"};
const std::vector<int> kLengths{5, 1, 2, 3, 70, 33, 17, 130, 64};

struct MeshSpec {
  int ranks = 1;
  std::vector<std::string> overrides;
};
const MeshSpec kOneRank{};
const MeshSpec kEp2{2, {R"(dist_config={"name":"fsdpturbo","ep_size":2})"}};
const MeshSpec kEp2Efsdp2{4, {R"(dist_config={"name":"fsdpturbo","ep_size":2,"efsdp_size":2})"}};
const MeshSpec kFsdp3{3, {R"(dist_config={"name":"fsdp2"})"}};
const MeshSpec kReplicated2{2, {}};

struct Generated {
  std::vector<Answer> answers;  // as they came
  std::vector<size_t> order;
  std::map<size_t, Ids> tokens;  // as they came, by row
  std::map<size_t, int> rank_of;
  std::vector<generate::RunStats> stats;  // by rank
};

// Documents of random ids.
std::vector<Prompt> make_prompts(const std::vector<int>& lengths, int vocab = 500) {
  std::vector<Prompt> prompts;
  const Step documents = random_steps(1, lengths, vocab, 7)[0];
  for (const Document& document : documents) {
    prompts.push_back({.ids = document.input_ids});
  }
  return prompts;
}

train::Job make_job(const std::string& golden, const MeshSpec& mesh) {
  at::globalContext().setDeterministicAlgorithms(/*deterministic=*/true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  ops::TEST_poison_new_memory(true);
  std::vector<std::string> overrides{"model=" + golden_model(golden), "bf16=false"};
  overrides.insert(overrides.end(), mesh.overrides.begin(), mesh.overrides.end());
  config::Loaded loaded = config::load_config("", overrides, config::Command::kGenerate);
  loaded.config.dist.reshard_after_forward = false;
  return train::prepare_model("generate", std::move(loaded), mesh.ranks);
}

// `runs` runs, one after the other, of one loaded model. `stop` is asked on every rank after each iteration.
Generated generate_rows(const std::string& golden, const std::vector<Prompt>& prompts, const GeneratorOptions& options,
                        const MeshSpec& mesh = kOneRank, int runs = 1, const std::function<bool(int rank)>& stop = {}) {
  const train::Job job = make_job(golden, mesh);
  Generated result;
  result.stats.resize(static_cast<size_t>(mesh.ranks));
  std::mutex mutex;
  comm::run_threads(mesh.ranks, {.timeout = std::chrono::seconds(120)}, [&](comm::World& world) {
    ops::begin_rank_thread(1);
    generate::Generator generator(world, job);
    generate::Listener listener;
    listener.on_token = [&](size_t row, int32_t id) {
      const std::scoped_lock lock(mutex);
      result.tokens[row].push_back(id);
      result.rank_of[row] = world.rank();
    };
    listener.on_answer = [&](size_t row, const Answer& answer) {
      EXPECT_EQ(world.rank(), 0);
      result.order.push_back(row);
      result.answers.push_back(answer);
    };
    if (stop) listener.wants_stop = [&] { return stop(world.rank()); };
    for (int run = 0; run < runs; ++run) {
      result.stats[static_cast<size_t>(world.rank())] = generator.run(prompts, options, listener);
    }
  });
  return result;
}

std::vector<Ids> ids_of(const Generated& generated) {
  std::vector<Ids> ids;
  ids.reserve(generated.answers.size());
  for (const Answer& answer : generated.answers) ids.push_back(answer.ids);
  return ids;
}

// The plain way: the whole text through the model again for every token, nothing kept.
std::vector<Ids> continue_without_caches(const std::string& golden, const std::vector<Prompt>& prompts) {
  const train::Job job = make_job(golden, kOneRank);
  const auto world = comm::make_single_world();
  const auto model = train::build_loaded_model(job, train::build_meshes(*world, job));
  train::LayerWalk walk(*model, /*recompute=*/false);
  std::vector<Ids> answers;
  for (const Prompt& prompt : prompts) {
    Ids text = prompt.ids;
    for (int64_t i = 0; i < kNewTokens; ++i) {
      const at::Tensor hidden_TH =
          walk.infer(train::make_document_batch(std::vector<train::TokenPiece>{{.ids = text}}));
      const at::Tensor scores = model->model().head().logits(hidden_TH.narrow(0, -1, 1), model->runtime());
      text.push_back(generate::best_token({scores.const_data_ptr<float>(), static_cast<size_t>(scores.numel())}));
    }
    answers.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(prompt.ids.size()), text.end());
  }
  return answers;
}

TEST(Generate, EqualsWholeForwards) {
  for (const std::string& golden : kModels) {
    const auto prompts = make_prompts(kLengths);
    const auto expected = continue_without_caches(golden, prompts);
    std::set<int32_t> distinct;
    for (const Ids& ids : expected) distinct.insert(ids.begin(), ids.end());
    ASSERT_GT(distinct.size(), 10U) << "the model only repeats itself";
    for (const int64_t batch : {1, 4, 100}) {
      const auto generated = generate_rows(golden, prompts, {.max_new_tokens = kNewTokens, .batch = batch});
      EXPECT_EQ(ids_of(generated), expected) << golden << ", batch " << batch;
    }
  }
}

TEST(Generate, MeshesChangeNothing) {
  for (const std::string& golden : kModels) {
    const auto prompts = make_prompts(kLengths);
    const GeneratorOptions options{.max_new_tokens = kNewTokens, .batch = 3};
    const auto expected = ids_of(generate_rows(golden, prompts, options));
    for (const MeshSpec& mesh : {kEp2, kEp2Efsdp2, kFsdp3, kReplicated2}) {
      const auto generated = generate_rows(golden, prompts, options, mesh);
      EXPECT_EQ(ids_of(generated), expected) << golden << ", " << mesh.ranks << " ranks";
      for (const auto& [row, rank] : generated.rank_of) EXPECT_EQ(rank, static_cast<int>(row) % mesh.ranks);
    }
  }
}

// Also with weights that are gathered anew for every token.
TEST(Generate, GatheringAnewChangesNothing) {
  const auto prompts = make_prompts({5, 1, 40});
  const GeneratorOptions options{.max_new_tokens = 5};
  const auto expected = ids_of(generate_rows("small_s0", prompts, options));
  train::Job job = make_job("small_s0", kEp2Efsdp2);
  job.loaded.config.dist.reshard_after_forward = true;
  std::vector<Ids> ids;
  comm::run_threads(4, {.timeout = std::chrono::seconds(120)}, [&](comm::World& world) {
    ops::begin_rank_thread(1);
    generate::Generator generator(world, job);
    generator.run(prompts, options, {.on_answer = [&](size_t, const Answer& answer) { ids.push_back(answer.ids); }});
  });
  EXPECT_EQ(ids, expected);
}

TEST(Generate, RanksMayHaveNoRows) {
  for (const std::string& golden : kModels) {
    const auto prompts = make_prompts({9});
    const GeneratorOptions options{.max_new_tokens = kNewTokens};
    const auto expected = ids_of(generate_rows(golden, prompts, options));
    EXPECT_EQ(ids_of(generate_rows(golden, prompts, options, kEp2Efsdp2)), expected) << golden;
    EXPECT_TRUE(generate_rows(golden, {}, options, kEp2).answers.empty());
  }
}

// A rank's experts compute in the same way for others, whether it has documents of its own or none. No expert has more
// tokens than the products of a few rows take.
TEST(Generate, ARankWithoutRowsChangesNoBit) {
  const auto prompts = make_prompts({3, 2});
  const train::Job job = make_job("small_s0", kEp2);
  const auto hidden_of_first = [&](bool second_has_rows) {
    at::Tensor hidden;
    comm::run_threads(2, {.timeout = std::chrono::seconds(120)}, [&](comm::World& world) {
      ops::begin_rank_thread(1);
      const auto model = train::build_loaded_model(job, train::build_meshes(world, job));
      train::LayerWalk walk(*model, /*recompute=*/false);
      train::DocumentCache cache;
      std::vector<train::TokenPiece> pieces;
      std::vector<train::DocumentCache*> caches;
      if (world.rank() == 0 || second_has_rows) {
        pieces.push_back({.ids = prompts[static_cast<size_t>(world.rank())].ids});
        caches.push_back(&cache);
      }
      const at::Tensor own = walk.extend(train::make_document_batch(pieces), caches);
      if (world.rank() == 0) hidden = own;
    });
    return hidden;
  };
  EXPECT_TRUE(at::equal(hidden_of_first(true), hidden_of_first(false)));
}

TEST(Generate, DrawsTheSameWhateverMeshAndBatch) {
  for (const std::string& golden : kModels) {
    const auto prompts = make_prompts(kLengths);
    GeneratorOptions options{
        .sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95}, .seed = 3, .max_new_tokens = 8, .batch = 8};
    const auto expected = ids_of(generate_rows(golden, prompts, options));
    options.batch = 2;
    EXPECT_EQ(ids_of(generate_rows(golden, prompts, options)), expected) << golden;
    EXPECT_EQ(ids_of(generate_rows(golden, prompts, options, kEp2)), expected) << golden;
    EXPECT_EQ(ids_of(generate_rows(golden, prompts, options, kEp2Efsdp2)), expected) << golden;
    options.seed = 4;
    EXPECT_NE(ids_of(generate_rows(golden, prompts, options)), expected) << golden;
  }
}

TEST(Generate, TellsTokensAndRowsInOrder) {
  auto prompts = make_prompts(kLengths);
  const GeneratorOptions options{.max_new_tokens = kNewTokens, .batch = 2};
  const auto plain = ids_of(generate_rows("small_s0", prompts, options));
  // Rows end at unlike places: at their third token, at once, or not at all.
  for (size_t row = 0; row < prompts.size(); ++row) {
    if (row % 3 != 2) prompts[row].end_ids = {plain[row][row % 3 == 0 ? 2 : 0]};
  }
  for (const MeshSpec& mesh : {kOneRank, kEp2}) {
    const auto generated = generate_rows("small_s0", prompts, options, mesh);
    ASSERT_EQ(generated.answers.size(), prompts.size());
    int64_t new_tokens = 0;
    for (size_t row = 0; row < prompts.size(); ++row) {
      const Answer& answer = generated.answers[row];
      EXPECT_EQ(generated.order[row], row);
      const auto& ends = prompts[row].end_ids;
      const auto end = ends.empty() ? plain[row].end() : std::find(plain[row].begin(), plain[row].end(), ends[0]);
      EXPECT_EQ(answer.is_ended, end != plain[row].end()) << row;
      const Ids told(plain[row].begin(), end);
      EXPECT_EQ(answer.ids, answer.is_ended ? Ids(plain[row].begin(), end + 1) : told) << row;
      const auto streamed = generated.tokens.find(row);
      EXPECT_EQ(streamed == generated.tokens.end() ? Ids{} : streamed->second, told) << row;
      new_tokens += static_cast<int64_t>(answer.ids.size());
    }
    for (const auto& stats : generated.stats) {
      EXPECT_FALSE(stats.is_stopped);
      EXPECT_EQ(stats.new_tokens, new_tokens);
      EXPECT_EQ(stats.prompt_tokens, 5 + 1 + 2 + 3 + 70 + 33 + 17 + 130 + 64);
      EXPECT_GT(stats.prompt_seconds, 0);
    }
  }
}

TEST(Generate, OneNewTokenNeedsThePromptOnly) {
  const auto prompts = make_prompts(kLengths);
  const auto plain = ids_of(generate_rows("qwen3_5_whole", prompts, {.max_new_tokens = 4}));
  for (const MeshSpec& mesh : {kOneRank, kEp2}) {
    const auto generated = generate_rows("qwen3_5_whole", prompts, {.max_new_tokens = 1, .batch = 2}, mesh);
    ASSERT_EQ(generated.answers.size(), prompts.size());
    for (size_t row = 0; row < prompts.size(); ++row) {
      EXPECT_EQ(generated.answers[row].ids, Ids{plain[row][0]});
      EXPECT_FALSE(generated.answers[row].is_ended);
    }
    EXPECT_EQ(generated.stats[0].decoded_tokens, 0);
  }
}

TEST(Generate, OneLoadedModelRunsAgainAndAgain) {
  const auto prompts = make_prompts({4, 20});
  const GeneratorOptions options{.max_new_tokens = 6};
  const auto once = ids_of(generate_rows("qwen3_5_whole", prompts, options));
  const auto thrice = ids_of(generate_rows("qwen3_5_whole", prompts, options, kEp2, 3));
  ASSERT_EQ(thrice.size(), 6U);
  for (size_t i = 0; i < thrice.size(); ++i) EXPECT_EQ(thrice[i], once[i % 2]);
}

// The wish of any rank, one without rows too, ends the run on all of them.
TEST(Generate, OneRankStopsAll) {
  const auto prompts = make_prompts({4, 20});
  for (const int who : {0, 3}) {
    std::atomic<int> asked{0};
    const auto generated = generate_rows("small_s0", prompts, {.max_new_tokens = 1000}, kEp2Efsdp2, 1,
                                         [&](int rank) { return rank == who && ++asked == 3; });
    EXPECT_TRUE(generated.answers.empty());
    for (const auto& stats : generated.stats) {
      EXPECT_TRUE(stats.is_stopped);
      EXPECT_EQ(stats.new_tokens, 6);
    }
  }
}

TEST(Generate, PromptsInPiecesChangeNothing) {
  const auto prompts = make_prompts({2500, 3, 2500, 2500, 7});
  const GeneratorOptions all{.max_new_tokens = 3, .batch = 8}, one{.max_new_tokens = 3, .batch = 1};
  EXPECT_EQ(ids_of(generate_rows("small_s0", prompts, all)), ids_of(generate_rows("small_s0", prompts, one)));
}

}  // namespace
}  // namespace expertmesh::dist
