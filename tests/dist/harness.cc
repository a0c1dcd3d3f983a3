// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <random>

#include "base/json.h"
#include "config/load.h"
#include "golden.h"
#include "ops/new_tensor.h"
#include "ops/rank_thread.h"
#include "train/build.h"
#include "train/weights.h"

namespace expertmesh::dist {
namespace {

std::vector<int32_t> int_list(const base::Json& row, std::string_view key) {
  std::vector<int32_t> values;
  for (const base::Json& value : *row.find(key)->try_array())
    values.push_back(static_cast<int32_t>(*value.try_int64()));
  return values;
}

// Copies a rank's shard into its place of the whole tensor.
void scatter(const shard::Box& box, const std::vector<int64_t>& shape, const float* shard, std::vector<float>& whole) {
  if (box.numel() == 0) return;
  const size_t dims = shape.size();
  std::vector<int64_t> index(dims, 0);
  const std::vector<int64_t> local = box.shape();
  const int64_t numel = box.numel();
  for (int64_t i = 0; i < numel; ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < dims; ++d) offset = offset * shape[d] + box.ranges[d].begin + index[d];
    whole[static_cast<size_t>(offset)] = shard[i];
    for (size_t d = dims; d-- > 0;) {
      if (++index[d] < local[d]) break;
      index[d] = 0;
    }
  }
}

class Collector {
 public:
  void add(const shard::Parameter& parameter, const at::Tensor& shard, Tensors& into) {
    const at::Tensor values = shard.to(at::kFloat).contiguous();
    const std::scoped_lock lock(mutex_);  // replicas write to the same place
    std::vector<float>& whole = into[parameter.name()];
    if (whole.empty())
      whole.assign(static_cast<size_t>(parameter.global_numel()), std::numeric_limits<float>::quiet_NaN());
    scatter(parameter.local_box(), parameter.global_shape(), values.const_data_ptr<float>(), whole);
  }

 private:
  std::mutex mutex_;
};

// The documents of one rank as `count` micro-batches. A rank without documents takes part with one token.
std::vector<data::MicroBatch> micro_batches_of(const Step& step, int dp_rank, int dp_size, int count) {
  std::vector<std::vector<data::Sample>> samples(static_cast<size_t>(count));
  int next = 0;
  for (size_t i = static_cast<size_t>(dp_rank); i < step.size(); i += static_cast<size_t>(dp_size)) {
    const Document& document = step[i];
    samples[static_cast<size_t>(next++ % count)].push_back(
        {document.input_ids, document.labels, std::vector<float>(document.labels.size(), 1.0F)});
  }
  std::vector<data::MicroBatch> batches;
  for (auto& part : samples) {
    if (part.empty()) part.push_back({{0}, {data::kIgnoredLabel}, {1.0F}});
    batches.push_back(data::collate(part));
  }
  return batches;
}

void run_rank(comm::World& world, const RunSpec& spec, const train::Job& job, Collector& collector, RunResult& result) {
  ops::begin_rank_thread(1);
  const config::Config& config = job.loaded.config;
  const auto meshes = train::build_meshes(world, job);
  const auto model = train::build_sharded_model(job, meshes);
  train::load_weights(*job.weights, *model);
  if (spec.before_steps) spec.before_steps(*model);
  const auto optimizer = train::make_optimizer(config.optim, model->parameters());
  const auto loss = train::make_loss("sft");
  train::LayerWalk walk(*model, config.train.enable_activation_checkpointing);
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const int dp_rank = meshes->coordinates().dp;
    const auto batches = spec.batches
                             ? spec.batches(static_cast<int>(i), dp_rank)
                             : micro_batches_of(spec.steps[i], dp_rank, meshes->topology().dp, spec.micro_batches);
    const train::StepResult step = train::train_step(*model, walk, *loss, *optimizer, batches,
                                                     {.max_grad_norm = config.train.max_grad_norm,
                                                      .learning_rate = config.train.learning_rate,
                                                      .balance = train::balance_options(config.model)});
    if (world.rank() == 0) result.steps.push_back(step);
    if (i == 0) {
      for (const shard::Parameter* p : model->parameters()) {
        if (p->has_grad()) collector.add(*p, p->grad(), result.gradients);
      }
    }
    if (spec.after_step) spec.after_step(world, *model, static_cast<int>(i) + 1, step);
  }
  for (const shard::Parameter* p : model->parameters()) collector.add(*p, p->local(), result.weights);
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, static_cast<double>(std::fabs(value)));
  return most;
}

std::string tensor_difference(const std::string& what, const Tensors& run, const Tensors& reference, double bound) {
  if (run.size() != reference.size()) return fmt::format("{} {} tensors for {}\n", run.size(), what, reference.size());
  std::string text;
  for (const auto& [name, expected] : reference) {
    const auto found = run.find(name);
    if (found == run.end()) return fmt::format("no {} of {}\n", what, name);
    const double scale = std::max(largest(expected), 1e-30);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double d = std::fabs(static_cast<double>(found->second[i]) - expected[i]) / scale;
      worst = std::isnan(d) ? INFINITY : std::max(worst, d);
    }
    if (worst > bound) text += fmt::format("{} of {}: {:.2e} of its largest value {:.3e}\n", what, name, worst, scale);
  }
  return text;
}

double relative(double a, double b) {
  return std::isfinite(a) ? std::fabs(a - b) / std::max(std::fabs(b), 1e-30) : INFINITY;
}

}  // namespace

RunResult run_steps(const RunSpec& spec) {
  // Memory that nobody has written yet is NaN: a value that was never computed cannot pass for a result.
  at::globalContext().setDeterministicAlgorithms(/*deterministic=*/true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  ops::TEST_poison_new_memory(true);
  std::vector<std::string> overrides{"model=" + spec.model_dir, "train_dataset=unused.jsonl"};
  overrides.insert(overrides.end(), spec.overrides.begin(), spec.overrides.end());
  const train::Job job =
      train::prepare_model("sft", config::load_config("", overrides, config::Command::kSft), spec.ranks);
  RunResult result;
  Collector collector;
  const auto body = [&](comm::World& world) { run_rank(world, spec, job, collector, result); };
  comm::run_threads(spec.ranks, {.timeout = std::chrono::seconds(120)}, body);
  return result;
}

std::vector<Step> golden_steps(const std::string& name) {
  std::ifstream file(golden::golden_dir(name) + "/batches.jsonl");
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) {
    const base::Json row = base::parse_json(line);
    Step step;
    for (const base::Json& sample : *row.find("samples")->try_array()) {
      step.push_back({int_list(sample, "input_ids"), int_list(sample, "labels")});
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::string golden_model(const std::string& name) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  const auto dir = std::filesystem::temp_directory_path() / fmt::format("expertmesh-golden-{}-{}", getpid(), name);
  if (!std::filesystem::exists(dir)) {
    std::filesystem::create_directories(dir);
    golden::write_golden_model(name, dir.string());
  }
  return dir.string();
}

std::vector<Step> random_steps(int num_steps, const std::vector<int>& lengths, int vocab, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<Step> steps;
  for (int i = 0; i < num_steps; ++i) {
    Step step;
    for (const int length : lengths) {
      Document document;
      for (int t = 0; t < length; ++t)
        document.input_ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
      document.labels = document.input_ids;
      step.push_back(std::move(document));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::string difference(const RunResult& run, const RunResult& reference, const Bounds& bounds) {
  std::string text;
  if (run.steps.size() != reference.steps.size()) return "another number of steps\n";
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const auto &a = run.steps[i], &b = reference.steps[i];
    if (relative(a.loss, b.loss) > bounds.loss) text += fmt::format("step {}: loss {} for {}\n", i + 1, a.loss, b.loss);
    if (relative(a.grad_norm, b.grad_norm) > bounds.norm) {
      text += fmt::format("step {}: norm {} for {}\n", i + 1, a.grad_norm, b.grad_norm);
    }
    if (relative(a.expert_norm, b.expert_norm) > bounds.norm) {
      text += fmt::format("step {}: expert norm {} for {}\n", i + 1, a.expert_norm, b.expert_norm);
    }
  }
  return text + tensor_difference("gradient", run.gradients, reference.gradients, bounds.gradient) +
         tensor_difference("weight", run.weights, reference.weights, bounds.weight);
}

}  // namespace expertmesh::dist
