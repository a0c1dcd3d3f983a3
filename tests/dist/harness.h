// SPDX-License-Identifier: Apache-2.0
// Runs a few optimizer steps of a golden model on any mesh, with rank threads, and gives back what every rank would
// agree on: loss and norm of each step, the gathered gradients of step 1 and the gathered final weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "train/step.h"

namespace expertmesh::dist {

struct Document {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
};
using Step = std::vector<Document>;

struct RunSpec {
  std::string model_dir;
  std::vector<Step> steps;
  int ranks = 1;
  std::vector<std::string> overrides;  // key=value, as on the command line
  int micro_batches = 1;               // documents of a rank are spread over so many
  // Where given, the micro-batches of step 0, 1, ... in place of those: `steps` only says how many steps there are.
  std::function<std::vector<data::MicroBatch>(int step, int dp_rank)> batches{};
  // Called on every rank when the weights are loaded.
  std::function<void(train::ShardedModel&)> before_steps{};
  // Called on every rank after each step.
  std::function<void(comm::World&, train::ShardedModel&, int step, const train::StepResult&)> after_step;
};

using Tensors = std::map<std::string, std::vector<float>>;

struct RunResult {
  std::vector<train::StepResult> steps;
  Tensors gradients;  // of step 1, before clipping
  Tensors weights;    // after the last step
};

RunResult run_steps(const RunSpec& spec);

// The steps of a golden: tests/golden/FAMILY/NAME/batches.jsonl.
std::vector<Step> golden_steps(const std::string& name);

// A folder that lives as long as the process, with the golden's model in it.
std::string golden_model(const std::string& name);

// Documents of the given lengths with random ids below `vocab`, everything supervised.
std::vector<Step> random_steps(int num_steps, const std::vector<int>& lengths, int vocab, uint64_t seed = 1);

// What differs between a run and its one-rank reference beyond the bounds ("" where nothing does). `gradient` and
// `weight` are fractions of each tensor's largest value; loss and norm are relative.
struct Bounds {
  double loss = 1e-6, norm = 5e-6, gradient = 5e-6, weight = 2e-6;
};
std::string difference(const RunResult& run, const RunResult& reference, const Bounds& bounds = {});

}  // namespace expertmesh::dist
