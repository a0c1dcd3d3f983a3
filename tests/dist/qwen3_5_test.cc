// SPDX-License-Identifier: Apache-2.0
// Qwen3.5-MoE where it differs from other models: parameters that stay fp32 in a bf16 model, tensors that are carried
// along untrained, dtypes and layouts that a save keeps, chunks of the gated delta rule.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "ckpt/load_plan.h"
#include "harness.h"
#include "train/weights.h"

namespace expertmesh::dist {
namespace {

RunSpec spec_of(const std::string& golden, int ranks, std::vector<std::string> overrides) {
  RunSpec spec{.model_dir = golden_model(golden),
               .steps = random_steps(3, {5, 9, 70, 33, 1, 2, 40}, 500),
               .ranks = ranks,
               .overrides = std::move(overrides),
               .micro_batches = 1,
               .after_step = {}};
  spec.overrides.insert(spec.overrides.end(), {"learning_rate=0.01", "max_grad_norm=1.0"});
  if (ranks > 1) spec.overrides.push_back("dist_config={\"name\":\"fsdpturbo\",\"ep_size\":2}");
  return spec;
}

bool stays_fp32(const std::string& name) { return name.ends_with(".A_log") || name.ends_with(".dt_bias"); }

bool is_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & 0xffffU) == 0;
}

// Updates far below what bf16 could hold are not lost, on one rank or many, in both gather modes.
TEST(Fp32Parameters, StayFp32InABf16Model) {
  for (const char* mode : {"native", "custom"}) {
    for (const int ranks : {1, 4}) {
      RunSpec spec = spec_of("qwen3_5_whole", ranks, {"bf16=true", "optim_config={\"name\":\"adamw\"}"});
      if (ranks > 1) spec.overrides.push_back(fmt::format("dist_config.fsdp_implementation={}", mode));
      spec.after_step = [](comm::World&, train::ShardedModel& model, int, const train::StepResult&) {
        for (const shard::Parameter* p : model.parameters()) {
          EXPECT_EQ(p->keep_fp32(), stays_fp32(p->name())) << p->name();
          EXPECT_EQ(p->dtype(), p->keep_fp32() ? at::kFloat : at::kBFloat16) << p->name();
        }
      };
      const RunResult run = run_steps(spec);
      int beyond_bf16 = 0;
      for (const auto& [name, values] : run.weights) {
        if (!stays_fp32(name)) continue;
        for (const float value : values) beyond_bf16 += is_bf16(value) ? 0 : 1;
      }
      EXPECT_EQ(beyond_bf16, 8) << ranks << " ranks, " << mode;  // four heads, two tensors
    }
  }
}

TEST(Fp32Parameters, GatherModesAreBitwiseEqual) {
  RunSpec native = spec_of("qwen3_5_whole", 4, {"bf16=true"}), custom = native;
  custom.overrides.push_back("dist_config.fsdp_implementation=custom");
  EXPECT_EQ(difference(run_steps(native), run_steps(custom), {.loss = 0, .norm = 0, .gradient = 0, .weight = 0}), "");
}

TEST(Chunks, ChangeRoundingOnly) {
  const RunResult whole = run_steps(spec_of("qwen3_5_whole", 1, {"bf16=false", "optim_config={\"name\":\"sgd\"}"}));
  for (const char* kernel : {"kernel_config={\"name\":\"auto, flash-linear-attention\",\"chunk_size\":16}",
                             "kernel_config={\"name\":\"auto, flash-linear-attention\",\"chunk_size\":32}",
                             "kernel_config={\"name\":\"auto\"}", "kernel_config={\"name\":\"reference\"}"}) {
    RunSpec spec = spec_of("qwen3_5_whole", 2, {"bf16=false", "optim_config={\"name\":\"sgd\"}", kernel});
    EXPECT_EQ(difference(run_steps(spec), whole), "") << kernel;
  }
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "expertmesh_qwen3_5_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::byte> bytes_of(const ckpt::ModelFiles& files, const ckpt::ModelTensor& tensor) {
  std::vector<std::byte> bytes(tensor.info.bytes());
  files.read(tensor, 0, bytes);
  return bytes;
}

// Saves the model of a run's last step and gives both directories' files to `check`.
void check_save(RunSpec spec, bool bf16,
                const std::function<void(const ckpt::ModelFiles& source, const ckpt::ModelFiles& saved)>& check) {
  const TempDir out;
  const auto fs = base::make_posix_file_system(base::Code::kModel);
  const auto source = std::make_shared<ckpt::ModelFiles>(*fs, spec.model_dir);
  const int last = static_cast<int>(spec.steps.size());
  spec.after_step = [&](comm::World&, train::ShardedModel& model, int step, const train::StepResult&) {
    if (step != last) return;
    const ckpt::LoadPlan plan(source, model.model().weight_table());
    train::save_weights(plan, model, out.path(), bf16, nullptr);
  };
  run_steps(spec);
  check(*source, ckpt::ModelFiles(*fs, out.path()));
}

// Names and layout are the source's; what is not trained is equal to the byte; A_log and dt_bias keep their dtype.
TEST(Save, KeepsNamesDtypesAndWhatIsNotTrained) {
  for (const char* golden : {"qwen3_5_whole", "qwen3_5_odd", "qwen3_5_text"}) {
    check_save(spec_of(golden, 4, {"bf16=true"}), true, [&](const auto& source, const auto& saved) {
      EXPECT_EQ(source.tensors().size(), saved.tensors().size()) << golden;
      int untouched = 0;
      for (const ckpt::ModelTensor& tensor : source.tensors()) {
        const std::string& name = tensor.info.name;
        const ckpt::ModelTensor* copy = saved.find(name);
        ASSERT_NE(copy, nullptr) << golden << " " << name;
        EXPECT_EQ(copy->info.shape, tensor.info.shape) << name;
        const bool is_carried = name.starts_with("mtp.") || name.starts_with("model.visual.");
        EXPECT_EQ(copy->info.dtype, is_carried || stays_fp32(name) ? base::DType::kF32 : base::DType::kBF16) << name;
        if (!is_carried) continue;
        EXPECT_EQ(bytes_of(source, tensor), bytes_of(saved, *copy)) << name;
        ++untouched;
      }
      EXPECT_EQ(untouched > 0, std::string(golden) != "qwen3_5_text");
    });
  }
}

// A whole round trip without an update, from two expert layouts.
TEST(Save, IsByteEqualWhereNothingChanged) {
  for (const char* golden : {"qwen3_5_whole", "qwen3_5_odd", "qwen3_5_text"}) {
    RunSpec spec = spec_of(golden, 4, {"bf16=false", "optim_config={\"name\":\"sgd\"}"});
    spec.overrides.push_back("learning_rate=0");
    check_save(spec, false, [&](const auto& source, const auto& saved) {
      for (const ckpt::ModelTensor& tensor : source.tensors()) {
        const ckpt::ModelTensor* copy = saved.find(tensor.info.name);
        ASSERT_NE(copy, nullptr) << tensor.info.name;
        EXPECT_EQ(bytes_of(source, tensor), bytes_of(saved, *copy)) << golden << " " << tensor.info.name;
      }
    });
  }
}

}  // namespace
}  // namespace expertmesh::dist
