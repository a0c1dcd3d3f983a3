// SPDX-License-Identifier: Apache-2.0
// Six optimizer steps of every golden model against Hugging Face transformers: loss, norm, gradients, weights.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "base/json.h"
#include "golden.h"
#include "harness.h"

namespace expertmesh::dist {
namespace {

struct Case {
  std::string golden;
  std::string optimizer;
  int ranks;
};

class GoldenTrace : public testing::TestWithParam<Case> {};

std::vector<std::string> overrides_of(const Case& c) {
  std::vector<std::string> overrides{"bf16=false", "max_grad_norm=1.0"};
  if (c.optimizer == "sgd") {
    overrides.insert(overrides.end(), {"learning_rate=0.05", "optim_config={\"name\":\"sgd\"}"});
  } else {
    overrides.insert(overrides.end(),
                     {"learning_rate=1e-3", "optim_config={\"name\":\"adamw\",\"weight_decay\":0.01}"});
  }
  if (c.ranks > 1) overrides.push_back("dist_config={\"name\":\"fsdpturbo\",\"ep_size\":2}");
  return overrides;
}

void compare_tensors(const Tensors& tensors, const std::string& path,
                     const std::function<golden::Bound(const std::string& name)>& bound_of) {
  const auto expected = golden::read_summaries(path);
  ASSERT_FALSE(expected.empty());
  golden::Tally tally;
  double wanted_share = 0.0;
  for (const auto& [name, summary] : expected) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      ADD_FAILURE() << path << ": no tensor " << name;
      continue;
    }
    const golden::Bound bound = bound_of(name);
    wanted_share = bound.typical_share;
    const auto difference = golden::find_difference(name, found->second, summary, bound, &tally);
    EXPECT_FALSE(difference) << *difference;
  }
  EXPECT_GE(tally.share(), wanted_share) << path;
}

TEST_P(GoldenTrace, EqualsTransformers) {
  const Case c = GetParam();
  const RunResult run = run_steps({.model_dir = golden_model(c.golden),
                                   .steps = golden_steps(c.golden),
                                   .ranks = c.ranks,
                                   .overrides = overrides_of(c),
                                   .micro_batches = 1,
                                   .after_step = {}});
  const std::string dir = golden::golden_dir(c.golden);
  std::ifstream trace(dir + "/" + c.optimizer + "/trace.jsonl");
  size_t step = 0;
  for (std::string line; std::getline(trace, line); ++step) {
    const base::Json row = base::parse_json(line);
    const double loss = *row.find("loss")->try_double(), norm = *row.find("grad_norm")->try_double();
    ASSERT_LT(step, run.steps.size());
    EXPECT_NEAR(run.steps[step].loss, loss, 1e-5 * loss) << "step " << step + 1;
    EXPECT_NEAR(run.steps[step].grad_norm, norm, 1e-5 * norm) << "step " << step + 1;
  }
  EXPECT_EQ(step, 6U);
  compare_tensors(run.gradients, dir + "/grads_step1.safetensors", golden::gradient_bound);
  compare_tensors(run.weights, dir + "/" + c.optimizer + "/final.safetensors",
                  [&](const std::string&) { return c.optimizer == "sgd" ? golden::kStrict : golden::kAdamW; });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& name : golden::golden_names()) {
    for (const std::string optimizer : {"sgd", "adamw"}) {
      cases.push_back({name, optimizer, 1});
      cases.push_back({name, optimizer, 4});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTrace, testing::ValuesIn(all_cases()), [](const auto& test) {
  return test.param.golden + "_" + test.param.optimizer + "_" + std::to_string(test.param.ranks);
});

}  // namespace
}  // namespace expertmesh::dist
