// SPDX-License-Identifier: Apache-2.0
// Every golden model, built and loaded whole on one rank in fp32: log-probabilities of the rows, loss of the first step
// and its gradients, with the native and with the reference operators.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/load_plan.h"
#include "comm/world.h"
#include "golden.h"
#include "model/registry.h"

namespace expertmesh::model {
namespace {

using base::Json;

std::vector<Json> read_rows(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(base::parse_json(line));
  return rows;
}

std::vector<int64_t> int_list(const Json& row, const char* key) {
  std::vector<int64_t> values;
  for (const Json& item : *row.find(key)->try_array()) values.push_back(*item.try_int64());
  return values;
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "expertmesh_model_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Documents end to end; labels (one list a document) as targets of the position before.
TokenBatch make_batch(const std::vector<std::vector<int64_t>>& documents,
                      const std::vector<std::vector<int64_t>>& labels) {
  std::vector<int64_t> ids, positions, targets;
  TokenBatch batch;
  batch.cu_seqlens = {0};
  for (size_t d = 0; d < documents.size(); ++d) {
    for (size_t t = 0; t < documents[d].size(); ++t) {
      ids.push_back(documents[d][t]);
      positions.push_back(static_cast<int64_t>(t));
      targets.push_back(t + 1 < documents[d].size() ? labels[d][t + 1] : -100);
    }
    batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids_T = at::tensor(ids);
  batch.positions_T = at::tensor(positions);
  batch.targets_T = at::tensor(targets);
  return batch;
}

struct Loaded {
  std::unique_ptr<comm::World> world = comm::make_single_world();
  std::unique_ptr<Model> model;
  Runtime runtime;
};

Loaded load_golden(const std::string& name, const ops::Operators& operators, at::ScalarType dtype = at::kFloat) {
  const TempDir dir;
  golden::write_golden_model(name, dir.path());
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  const Json config = base::parse_json(fs->read_all(dir.path() + "/config.json"));
  Loaded loaded;
  loaded.model = find_model_spec(config, "config.json").build(config, "config.json");
  const auto files = std::make_shared<ckpt::ModelFiles>(*fs, dir.path());
  const ckpt::LoadPlan plan(files, loaded.model->weight_table());
  for (shard::Parameter* parameter : loaded.model->parameters()) {
    const bool is_fp32 = dtype == at::kFloat || parameter->keep_fp32();
    parameter->materialize(is_fp32 ? at::kFloat : dtype);
    plan.load_slice(parameter->name(), ckpt::Slice::whole(parameter->global_shape()),
                    parameter->local().mutable_data_ptr(), is_fp32 ? base::DType::kF32 : base::DType::kBF16);
  }
  loaded.runtime.ops = &operators;
  loaded.runtime.dispatcher = moe::make_dispatcher("eager");
  loaded.runtime.ep = loaded.world->make_group("ep", {{0}});
  return loaded;
}

at::Tensor infer(Loaded& loaded, const TokenBatch& batch) {
  const at::NoGradGuard no_graph;
  at::Tensor hidden = loaded.model->embedding().forward(batch.ids_T);
  for (DecoderLayer* layer : loaded.model->layers()) {
    moe::Routing routing;
    hidden = layer->forward(hidden, {.batch = batch, .runtime = loaded.runtime, .routing = routing});
  }
  return hidden;
}

// Forward and backward of a batch, layer by layer as the trainer walks. Returns the loss.
double run_step(Loaded& loaded, const TokenBatch& batch, double scale) {
  std::vector<at::Tensor> inputs, outputs;
  at::Tensor hidden = loaded.model->embedding().forward(batch.ids_T);
  for (DecoderLayer* layer : loaded.model->layers()) {
    moe::Routing routing;
    inputs.push_back(hidden.detach().set_requires_grad(true));
    outputs.push_back(layer->forward(inputs.back(), {.batch = batch, .runtime = loaded.runtime, .routing = routing}));
    hidden = outputs.back();
  }
  const Head::LossResult result =
      loaded.model->head().loss(hidden.detach(), batch, loaded.runtime, scale, /*with_gradient=*/true);
  at::Tensor grad = result.grad_hidden_TH;
  for (size_t i = outputs.size(); i-- > 0;) {
    torch::autograd::backward({outputs[i]}, {grad});
    grad = inputs[i].grad();
  }
  loaded.model->embedding().add_gradient(batch.ids_T, grad);
  return result.loss;
}

at::Tensor gradient_of(shard::Parameter& parameter) {
  at::Tensor gradient = parameter.value().grad();
  if (gradient.defined()) gradient = gradient.to(at::kFloat);
  if (!parameter.has_grad()) return gradient;
  return gradient.defined() ? gradient + parameter.grad() : parameter.grad();
}

class ModelGolden : public testing::TestWithParam<std::string> {};

// [3, T] of all rows.
at::Tensor axis_positions(const std::vector<Json>& rows) {
  std::vector<int64_t> positions;
  for (size_t axis = 0; axis < 3; ++axis) {
    for (const Json& row : rows) {
      for (const Json& place : *(*row.find("position_ids")->try_array())[axis].try_array()) {
        positions.push_back(*place.try_int64());
      }
    }
  }
  return at::tensor(positions).view({3, -1});
}

void expect_scores(const std::string& name, const ops::Operators& operators, const std::string& kind = "") {
  Loaded loaded = load_golden(name, operators);
  const std::vector<Json> rows = read_rows(golden::golden_dir(name) + "/" + kind + "rows.jsonl");
  const std::vector<Json> expected = read_rows(golden::golden_dir(name) + "/" + kind + "score.jsonl");
  std::vector<std::vector<int64_t>> documents;
  documents.reserve(rows.size());
  for (const Json& row : rows) documents.push_back(int_list(row, "input_ids"));
  TokenBatch batch = make_batch(documents, documents);
  if (kind == "position_") batch.axis_positions_AT = axis_positions(rows);
  const at::Tensor logprobs = loaded.model->head().logprobs(infer(loaded, batch), batch, loaded.runtime);
  const float* got = logprobs.const_data_ptr<float>();
  double worst = 0.0;
  for (size_t d = 0; d < documents.size(); ++d) {
    const Json::Array& wanted = *expected[d].find("logprobs")->try_array();
    ASSERT_EQ(wanted.size() + 1, documents[d].size());
    for (size_t t = 0; t < wanted.size(); ++t) {
      worst = std::max(worst, std::abs(got[batch.cu_seqlens[d] + static_cast<int64_t>(t)] - *wanted[t].try_double()));
    }
  }
  EXPECT_LT(worst, 2e-5) << name << " " << operators.name;
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
}

void expect_first_step(const std::string& name, const ops::Operators& operators) {
  Loaded loaded = load_golden(name, operators);
  const Json step = read_rows(golden::golden_dir(name) + "/batches.jsonl").front();
  std::vector<std::vector<int64_t>> documents, labels;
  for (const Json& sample : *step.find("samples")->try_array()) {
    documents.push_back(int_list(sample, "input_ids"));
    labels.push_back(int_list(sample, "labels"));
  }
  const TokenBatch batch = make_batch(documents, labels);
  const double num_targets = batch.targets_T.ne(-100).sum().item<double>();
  const double loss = run_step(loaded, batch, 1.0 / num_targets);
  const Json trace = read_rows(golden::golden_dir(name) + "/sgd/trace.jsonl").front();
  const double wanted = *trace.find("loss")->try_double();
  EXPECT_NEAR(loss, wanted, 1e-5 * wanted) << name << " " << operators.name;

  const auto summaries = golden::read_summaries(golden::golden_dir(name) + "/grads_step1.safetensors");
  size_t compared = 0;
  for (shard::Parameter* parameter : loaded.model->parameters()) {
    const auto expected = summaries.find(parameter->name());
    ASSERT_NE(expected, summaries.end()) << parameter->name();
    const at::Tensor gradient = gradient_of(*parameter).contiguous();
    EXPECT_EQ(golden::find_difference(parameter->name(),
                                      {gradient.const_data_ptr<float>(), static_cast<size_t>(gradient.numel())},
                                      expected->second, golden::gradient_bound(parameter->name())),
              std::nullopt)
        << name << " " << operators.name;
    ++compared;
  }
  EXPECT_EQ(compared, summaries.size()) << name;
}

TEST_P(ModelGolden, NativeOperatorsScoreAsTransformers) { expect_scores(GetParam(), ops::native_operators()); }
TEST_P(ModelGolden, PlacesOnThreeAxesScoreAsTransformers) {
  if (!GetParam().starts_with("qwen3_5")) return;  // the other family has one axis
  expect_scores(GetParam(), ops::native_operators(), "position_");
}
TEST_P(ModelGolden, ReferenceOperatorsScoreAsTransformers) { expect_scores(GetParam(), ops::reference_operators()); }
TEST_P(ModelGolden, NativeOperatorsGiveTheFirstGradients) { expect_first_step(GetParam(), ops::native_operators()); }
TEST_P(ModelGolden, ReferenceOperatorsGiveTheFirstGradients) {
  expect_first_step(GetParam(), ops::reference_operators());
}

INSTANTIATE_TEST_SUITE_P(All, ModelGolden, testing::ValuesIn(golden::golden_names()),
                         [](const auto& instance) { return instance.param; });

// bf16 rounds the weights, so the scores differ; they stay near those of fp32.
class ModelBf16 : public testing::TestWithParam<std::string> {};

TEST_P(ModelBf16, ScoresStayNearFp32) {
  Loaded loaded = load_golden(GetParam(), ops::native_operators(), at::kBFloat16);
  const std::vector<Json> rows = read_rows(golden::golden_dir(GetParam()) + "/rows.jsonl");
  const std::vector<Json> expected = read_rows(golden::golden_dir(GetParam()) + "/score.jsonl");
  double difference = 0.0, count = 0.0;
  for (size_t d = 0; d < rows.size(); ++d) {
    const std::vector<int64_t> ids = int_list(rows[d], "input_ids");
    const TokenBatch batch = make_batch({ids}, {ids});
    const at::Tensor logprobs = loaded.model->head().logprobs(infer(loaded, batch), batch, loaded.runtime);
    const Json::Array& wanted = *expected[d].find("logprobs")->try_array();
    for (size_t t = 0; t < wanted.size(); ++t) {
      difference += std::abs(logprobs.const_data_ptr<float>()[t] - *wanted[t].try_double());
      count += 1.0;
    }
  }
  EXPECT_LT(difference / count, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Some, ModelBf16, testing::Values("small_s0", "qwen3_5_whole", "qwen3_5_odd"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace expertmesh::model
