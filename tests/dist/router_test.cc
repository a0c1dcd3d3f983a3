// SPDX-License-Identifier: Apache-2.0
// Routers in training, on meshes: the balance loss against transformers and against one rank, and the cases of routers
// and of activation recompute (tests/cases/README.md).
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <mutex>
#include <numeric>

#include "base/json.h"
#include "golden.h"
#include "harness.h"

namespace expertmesh::dist {
namespace {

const Bounds kBitwise{.loss = 0, .norm = 0, .gradient = 0, .weight = 0};

std::vector<std::string> sgd() {
  return {"bf16=false", "max_grad_norm=1.0", "learning_rate=0.05", "optim_config={\"name\":\"sgd\"}"};
}

// Mesh and other overrides on top of SGD.
RunSpec spec_of(const std::string& golden, std::vector<Step> steps, int ranks, std::vector<std::string> extra,
                int micro_batches = 1) {
  RunSpec spec{.model_dir = golden_model(golden),
               .steps = std::move(steps),
               .ranks = ranks,
               .overrides = sgd(),
               .micro_batches = micro_batches,
               .after_step = {}};
  for (std::string& text : extra) spec.overrides.push_back(std::move(text));
  return spec;
}

std::string mesh(int ep, const std::string& dispatcher = "eager") {
  return fmt::format("dist_config={{\"name\":\"fsdpturbo\",\"ep_size\":{},\"ep_dispatcher\":\"{}\"}}", ep, dispatcher);
}

const std::string kBalance = "router_aux_loss_coef=0.2";
const std::string kByLayer = "moe_aux_loss=layer";
const std::string kNoRecompute = "enable_activation_checkpointing=false";

// Eight documents: every rank and micro-batch of the meshes below has some.
std::vector<Step> even_steps(int num_steps = 3) { return random_steps(num_steps, {5, 9, 17, 33, 90, 2, 64, 40}, 500); }

void expect_same_balance(const RunResult& run, const RunResult& reference, double bound = 1e-6) {
  ASSERT_EQ(run.steps.size(), reference.steps.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_GT(reference.steps[i].balance_loss, 0);
    EXPECT_NEAR(run.steps[i].balance_loss, reference.steps[i].balance_loss, bound * reference.steps[i].balance_loss)
        << "step " << i + 1;
  }
}

// transformers' load_balancing_loss_func over all samples of a step (tests/golden/make_balance_goldens.py). On one
// rank: some steps have a single sample.
class GoldenBalance : public testing::TestWithParam<std::string> {};

TEST_P(GoldenBalance, EqualsTransformers) {
  const std::string dir = golden::golden_dir(GetParam()) + "/balance/";
  const RunResult run = run_steps(spec_of(GetParam(), golden_steps(GetParam()), 1, {kBalance}));
  std::ifstream trace(dir + "trace.jsonl");
  size_t step = 0;
  for (std::string line; std::getline(trace, line); ++step) {
    const base::Json row = base::parse_json(line);
    const auto number = [&](const char* key) { return *row.find(key)->try_double(); };
    ASSERT_LT(step, run.steps.size());
    EXPECT_NEAR(run.steps[step].loss, number("loss"), 1e-5 * number("loss")) << "step " << step + 1;
    EXPECT_NEAR(run.steps[step].balance_loss, number("balance_loss"), 1e-5) << "step " << step + 1;
    EXPECT_NEAR(run.steps[step].grad_norm, number("grad_norm"), 1e-5 * number("grad_norm")) << "step " << step + 1;
  }
  EXPECT_EQ(step, 6U);
  for (const auto& [name, summary] : golden::read_summaries(dir + "grads_step1.safetensors")) {
    const auto difference =
        golden::find_difference(name, run.gradients.at(name), summary, golden::gradient_bound(name));
    EXPECT_FALSE(difference) << *difference;
  }
  for (const auto& [name, summary] : golden::read_summaries(dir + "final.safetensors")) {
    const auto difference = golden::find_difference(name, run.weights.at(name), summary);
    EXPECT_FALSE(difference) << *difference;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenBalance, testing::Values("tiny_s0", "no_norm_topk", "dense_first", "qwen3_5_text"),
                         [](const auto& test) { return test.param; });

// ROUTE-02, ROUTE-03: value and gradients are those of one rank and one micro-batch, on any mesh and split.
class BalanceOnMeshes : public testing::TestWithParam<std::string> {};

TEST_P(BalanceOnMeshes, IsThatOfOneRank) {
  const std::string& which = GetParam();
  const RunResult alone = run_steps(spec_of("tiny_s0", even_steps(), 1, {kBalance, which}));
  struct Variant {
    int ranks, micro_batches;
    std::vector<std::string> extra;
  };
  for (const Variant& v : {Variant{1, 4, {}}, Variant{1, 8, {kNoRecompute}}, Variant{2, 1, {mesh(1)}},
                           Variant{2, 2, {mesh(2)}}, Variant{4, 1, {mesh(2)}}, Variant{4, 2, {mesh(4, "fused")}},
                           Variant{4, 1, {mesh(2, "mc2"), kNoRecompute}}, Variant{4, 2, {mesh(2, "domino")}},
                           Variant{4, 1, {"dist_config={\"name\":\"fsdp2\"}"}}, Variant{2, 1, {"dist_config=null"}}}) {
    std::vector<std::string> extra = v.extra;
    extra.insert(extra.end(), {kBalance, which});
    const RunResult run = run_steps(spec_of("tiny_s0", even_steps(), v.ranks, extra, v.micro_batches));
    const std::string what =
        fmt::format("{} ranks, {} micro-batches, {}", v.ranks, v.micro_batches, v.extra.empty() ? "" : v.extra.front());
    EXPECT_EQ(difference(run, alone), "") << what;
    SCOPED_TRACE(what);
    expect_same_balance(run, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, BalanceOnMeshes, testing::Values("moe_aux_loss=global", kByLayer),
                         [](const auto& test) { return test.param == kByLayer ? "layer" : "global"; });

// One layer's loss is its own; the mean of two is not the loss of both together, unless they are loaded alike. A dense
// layer takes no part.
TEST(BalanceLoss, ByLayerIsFromTheLoadsOfEach) {
  for (const char* golden : {"tiny_s0", "dense_first"}) {
    RunSpec spec = spec_of(golden, even_steps(1), 2, {mesh(2), kBalance, kByLayer});
    const RunResult by_layer = run_steps(spec);
    const RunResult together = run_steps(spec_of(golden, even_steps(1), 2, {mesh(2), kBalance}));
    EXPECT_EQ(by_layer.steps[0].loss, together.steps[0].loss);
    EXPECT_GT(std::abs(by_layer.steps[0].balance_loss - together.steps[0].balance_loss), 1e-4) << golden;
  }
  // All tokens of all layers on the same two experts: alike, so both are the same.
  const std::vector<std::string> hot{mesh(2), kBalance, "debug_router=hot:2"};
  RunSpec spec = spec_of("tiny_s0", even_steps(1), 2, hot);
  const double together = run_steps(spec).steps[0].balance_loss;
  spec.overrides.push_back(kByLayer);
  const double by_layer = run_steps(spec).steps[0].balance_loss;
  EXPECT_NEAR(by_layer, together, 1e-6 * together);
}

// AC-02 with the balance loss: kept graphs and layers that run again give the same bits, also where routing came first.
TEST_P(BalanceOnMeshes, RecomputeIsBitwiseEqual) {
  for (const char* golden : {"tiny_s1", "qwen3_5_text"}) {
    for (const int micro_batches : {1, 2}) {
      const RunResult on = run_steps(spec_of(golden, even_steps(), 2, {mesh(2), kBalance, GetParam()}, micro_batches));
      const RunResult off =
          run_steps(spec_of(golden, even_steps(), 2, {mesh(2), kBalance, GetParam(), kNoRecompute}, micro_batches));
      EXPECT_EQ(difference(on, off, kBitwise), "") << golden;
      expect_same_balance(on, off, 0);
    }
  }
}

// ROUTE-01: off by default whatever config.json says (0.001 in the goldens); on, it moves the gates.
TEST(BalanceLoss, IsOffUnlessAskedFor) {
  const RunResult plain = run_steps(spec_of("tiny_s0", even_steps(), 2, {mesh(2)}, 2));
  const RunResult zero = run_steps(spec_of("tiny_s0", even_steps(), 2, {mesh(2), "router_aux_loss_coef=0"}, 2));
  const RunResult on = run_steps(spec_of("tiny_s0", even_steps(), 2, {mesh(2), "router_aux_loss_coef=0.01"}, 2));
  EXPECT_EQ(difference(zero, plain, kBitwise), "");
  EXPECT_EQ(zero.steps[0].balance_loss, 0);
  EXPECT_GT(on.steps[0].balance_loss, 1.9);  // about two choices a token, or more
  for (const auto& [name, values] : plain.gradients) {
    const bool is_gate = name.find("mlp.gate.weight") != std::string::npos;
    if (is_gate) {
      EXPECT_NE(on.gradients.at(name), values) << name;
    }
    // Nothing of the last layer but its router comes before the balance loss.
    if (name.find("layers.1.mlp.experts") != std::string::npos) {
      EXPECT_EQ(on.gradients.at(name), values) << name;
    }
  }
}

double sum_of_squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// ROUTE-01: the gates' gradient against a finite difference along it. The debug router holds the choices, and so the
// counts, still: all on experts 0 and 1.
TEST_P(BalanceOnMeshes, GateGradientAgreesWithAFiniteDifference) {
  const std::string gate = "model.layers.1.mlp.gate.weight";
  const std::vector<std::string> fixed{"debug_router=hot:2", "router_aux_loss_coef=20", "max_grad_norm=1e9",
                                       GetParam()};
  const auto run = [&](double learning_rate) {
    RunSpec spec = spec_of("tiny_s0", even_steps(1), 1, fixed);
    spec.steps.push_back(spec.steps.front());
    spec.overrides.push_back("trainable_modules=[\"" + gate + "\"]");
    spec.overrides.push_back(fmt::format("learning_rate={}", learning_rate));
    return run_steps(spec);
  };
  const auto objective = [](const RunResult& result) {
    return result.steps[1].loss + 20 * result.steps[1].balance_loss;
  };
  const double slope = sum_of_squares(run(0).gradients.at(gate));
  ASSERT_GT(slope, 0);
  const double length = 2e-2 / std::sqrt(slope);  // how far the gate moves: two hundredths
  const RunResult there = run(length), start = run(0);
  // One-sided with its second-order term taken out by a step of half the length.
  const RunResult half = run(length / 2);
  const double fall = 4 * (objective(start) - objective(half)) - (objective(start) - objective(there));
  EXPECT_NEAR(fall / length, slope, 1e-3 * slope);
}

// ROUTE-05: the same documents with half of the batch padding.
TEST(BalanceLoss, PaddingIsNoLoad) {
  const auto batches = [](bool is_padded) {
    return [is_padded](int step, int) {
      const Document document = random_steps(step + 1, {30}, 500).back().front();
      std::vector<data::Sample> samples{{document.input_ids, document.labels, std::vector<float>(30, 1.0F)}};
      if (is_padded) samples.push_back({{7}, {data::kIgnoredLabel}, {0.0F}});
      return std::vector<data::MicroBatch>{data::collate(samples)};
    };
  };
  // One token of its own beside a document of 30: 29 positions of padding. The model sees 31 tokens, not 60.
  RunSpec spec = spec_of("tiny_s0", even_steps(1), 1, {kBalance});
  std::vector<int64_t> loads;
  spec.after_step = [&](comm::World&, train::ShardedModel& model, int, const train::StepResult& result) {
    for (const auto& layer : model.layers()) {
      const auto& counts = layer.module->router()->load().counts();
      loads.push_back(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    }
    EXPECT_GT(result.balance_loss, 0);
  };
  spec.batches = batches(true);
  run_steps(spec);
  spec.batches = batches(false);
  run_steps(spec);
  EXPECT_THAT(loads, testing::ElementsAre(62, 62, 60, 60));
}

// A gate that has become NaN on the way ends no rank alone: the step is skipped on all of them, no weight moves.
TEST(NanLogits, SkipTheStepOnAllRanks) {
  for (const std::string& extra : {kBalance, std::string("seed=1")}) {
    RunSpec spec = spec_of("tiny_s0", even_steps(2), 4, {mesh(2), extra});
    std::mutex mutex;
    int skipped = 0;
    spec.after_step = [&](comm::World&, train::ShardedModel& model, int step, const train::StepResult& result) {
      if (step == 1) {
        const at::NoGradGuard no_grad;
        for (shard::Parameter* parameter : model.parameters()) {
          if (parameter->name() == "model.layers.0.mlp.gate.weight" && parameter->local_numel() > 0)
            parameter->local().fill_(std::numeric_limits<float>::quiet_NaN());
        }
        return;
      }
      const std::scoped_lock lock(mutex);
      skipped += static_cast<int>(!result.is_applied && result.is_nonfinite);
    };
    const RunResult run = run_steps(spec);
    EXPECT_EQ(skipped, 4);
    for (const auto& [name, values] : run.weights) {
      if (name == "model.layers.0.mlp.gate.weight") continue;
      for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

// Counts of each rank and layer after the last step, summed over ranks; and how often a choice was made.
struct Loads {
  std::vector<int64_t> counts, decisions;
};

RunResult run_with_loads(RunSpec spec, Loads& loads) {
  const auto last = static_cast<int>(spec.steps.size());
  std::mutex mutex;
  spec.after_step = [&loads, &mutex, last](comm::World&, train::ShardedModel& model, int step,
                                           const train::StepResult&) {
    if (step != last) return;
    const std::scoped_lock lock(mutex);
    std::vector<int64_t> counts, decisions;
    for (const auto& layer : model.layers()) {
      if (layer.module->router() == nullptr) continue;
      const auto& here = layer.module->router()->load().counts();
      counts.insert(counts.end(), here.begin(), here.end());
      decisions.push_back(layer.module->router()->num_decisions());
    }
    loads.counts.resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) loads.counts[i] += counts[i];
    loads.decisions = decisions;
  };
  return run_steps(spec);
}

int64_t tokens_of(const std::vector<Step>& steps) {
  int64_t tokens = 0;
  for (const Step& step : steps) {
    for (const Document& document : step) tokens += static_cast<int64_t>(document.input_ids.size());
  }
  return tokens;
}

// ROUTE-08, ROUTE-09, AC-01: each choice is made and counted once, with and without recompute and with routing first;
// dense layers have no load.
TEST(Loads, AreCountedOnce) {
  const std::vector<Step> steps = even_steps();
  struct Case {
    std::string golden;
    int moe_layers, top_k;
  };
  for (const Case& c : {Case{"tiny_s0", 2, 2}, Case{"dense_first", 3, 2}, Case{"sparse_step", 2, 2}}) {
    std::vector<int64_t> first;
    for (const std::string& recompute : {std::string("seed=1"), kNoRecompute}) {
      for (const std::string& balance : {std::string("seed=1"), kBalance}) {
        Loads loads;
        run_with_loads(spec_of(c.golden, {steps.front()}, 2, {mesh(2), recompute, balance}, 2), loads);
        EXPECT_EQ(std::accumulate(loads.counts.begin(), loads.counts.end(), int64_t{0}),
                  tokens_of({steps.front()}) * c.top_k * c.moe_layers)
            << c.golden;
        EXPECT_EQ(loads.decisions, std::vector<int64_t>(static_cast<size_t>(c.moe_layers), 2));
        if (first.empty()) first = loads.counts;
        EXPECT_EQ(loads.counts, first) << c.golden << " " << recompute << " " << balance;
      }
    }
  }
}

// AC-01: gates whose rows tie in pairs, bf16.
TEST(Recompute, TiesAreRoutedAsTheFirstTime) {
  const auto run = [](const std::string& recompute, Loads& loads) {
    RunSpec spec = spec_of("tiny_s0", even_steps(2), 1, {"bf16=true", recompute});
    spec.before_steps = [](train::ShardedModel& model) {
      const at::NoGradGuard no_grad;
      for (shard::Parameter* parameter : model.parameters()) {
        if (parameter->name().find("mlp.gate.weight") == std::string::npos) continue;
        parameter->local().slice(0, 2, 4).copy_(parameter->local().slice(0, 0, 2));
      }
    };
    return run_with_loads(spec, loads);
  };
  Loads on, off;
  const RunResult again = run("seed=1", on), kept = run(kNoRecompute, off);
  EXPECT_EQ(difference(again, kept, kBitwise), "");
  EXPECT_EQ(on.counts, off.counts);
  EXPECT_EQ(on.decisions, (std::vector<int64_t>{2, 2}));
}

// AC-03: a model of gated delta nets in bf16.
TEST(Recompute, OfGatedDeltaNetsInBf16IsBitwiseEqual) {
  const auto run = [](const std::string& recompute, Loads& loads) {
    return run_with_loads(spec_of("qwen3_5_whole", even_steps(), 2, {mesh(2), "bf16=true", recompute}), loads);
  };
  Loads on, off;
  const RunResult again = run("seed=1", on), kept = run(kNoRecompute, off);
  EXPECT_EQ(difference(again, kept, kBitwise), "");
  EXPECT_EQ(on.counts, off.counts);
}

// DISP-03: 5 tokens on one rank and 300 on the other.
TEST(UnevenSources, EqualOneRank) {
  const std::vector<Step> steps = random_steps(3, {5, 300}, 500);
  const RunResult alone = run_steps(spec_of("tiny_s0", steps, 1, {}));
  for (const char* dispatcher : {"eager", "fused", "mc2", "domino"}) {
    EXPECT_EQ(difference(run_steps(spec_of("tiny_s0", steps, 2, {mesh(2, dispatcher)})), alone), "") << dispatcher;
  }
}

// ROUTE-11: the gate learns from the loss itself; idle experts only decay, whatever the mesh.
TEST(IdleExperts, DoNotHoldTheOthersBack) {
  const auto spec = [](int ranks, const std::string& dist) {
    RunSpec made = spec_of("tiny_s0", even_steps(5), ranks, {dist, "debug_router=hot:4"});
    made.overrides.insert(made.overrides.end(),
                          {"learning_rate=1e-3", "optim_config={\"name\":\"adamw\",\"weight_decay\":0.01}"});
    return made;
  };
  const RunResult alone = run_steps(spec(1, mesh(1)));
  const RunResult run = run_steps(spec(4, mesh(2)));
  // Adam divides by near-zero second moments.
  EXPECT_EQ(difference(run, alone, {.loss = 1e-5, .norm = 1e-4, .gradient = 5e-6, .weight = 5e-3}), "");
  for (const auto& [name, values] : run.gradients) {
    if (name.find("mlp.gate.weight") != std::string::npos) {
      EXPECT_GT(sum_of_squares(values), 0) << name;
    }
  }
  const RunResult start = run_steps([&] {
    RunSpec none = spec(1, mesh(1));
    none.overrides.push_back("learning_rate=0");
    none.steps.resize(1);
    return none;
  }());
  const std::string idle = "model.layers.0.mlp.experts.down_proj";
  const std::vector<float>&before = start.weights.at(idle), &after = run.weights.at(idle);
  for (size_t i = before.size() / 2; i < before.size(); ++i) {
    const double expected = before[i] * std::pow(1.0 - 1e-3 * 0.01, 5);
    ASSERT_NEAR(after[i], expected, 1e-6 * std::fabs(before[i]) + 1e-12) << i;
  }
}

}  // namespace
}  // namespace expertmesh::dist
