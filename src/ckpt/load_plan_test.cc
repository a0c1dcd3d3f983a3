// SPDX-License-Identifier: Apache-2.0
#include "ckpt/load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "ckpt/convert.h"
#include "ckpt/safetensors_writer.h"
#include "ckpt/test_support.h"

namespace expertmesh::ckpt {
namespace {

using test::cases_path;
using test::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

// --- the model directories of tests/cases ---

std::vector<std::string> bad_models() {
  std::vector<std::string> names;
  for (const std::string& name : test::file_system().list(cases_path("models"))) {
    if (name.starts_with("bad_") && name != "bad_config_cut") names.push_back(name);  // that one is the config reader's
  }
  return names;
}

class BadModel : public ::testing::TestWithParam<std::string> {};

TEST_P(BadModel, IsRefusedAsExpected) {
  const base::Json all = base::parse_json(test::file_system().read_all(cases_path("expected.json")));
  const base::Json* wanted = all.find("models/" + GetParam());
  ASSERT_NE(wanted, nullptr);
  const std::string path = cases_path("models/" + GetParam());
  const WeightTable table = test::table_of(path);
  test::expect_case(*wanted->find("error"), error_of([&] { LoadPlan(test::open_model(path), table); }), path);
}

INSTANTIATE_TEST_SUITE_P(Directories, BadModel, ::testing::ValuesIn(bad_models()),
                         [](const auto& test) { return test.param; });

class GoodModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoodModel, IsAccepted) {
  const std::string path = cases_path("models/" + GetParam());
  const WeightTable table = test::table_of(path);
  const LoadPlan plan(test::open_model(path), table);
  for (const WeightEntry& entry : table.entries()) {
    for (const float value : test::load_all(plan, entry.name)) ASSERT_TRUE(std::isfinite(value)) << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Directories, GoodModel,
                         ::testing::Values("nano_qwen3", "ok_split", "ok_fused", "ok_sharded", "ok_tied",
                                           "ok_twelve_experts"),
                         [](const auto& test) { return test.param; });

TEST(LoadPlan, SplitFusedAndShardedHoldTheSameParameters) {
  const WeightTable table = test::table_of(cases_path("models/ok_split"));
  const LoadPlan split(test::open_model(cases_path("models/ok_split")), table);
  for (const char* other_name : {"ok_fused", "ok_sharded"}) {
    const std::string path = cases_path(std::string("models/") + other_name);
    const WeightTable other_table = test::table_of(path);
    const LoadPlan other(test::open_model(path), other_table);
    for (const WeightEntry& entry : table.entries()) {
      EXPECT_EQ(test::load_all(split, entry.name), test::load_all(other, entry.name)) << entry.name;
    }
  }
  EXPECT_EQ(split.layout("model.layers.0.mlp.experts.down_proj").name, "split");
}

TEST(LoadPlan, ExpertsAreInNumericOrder) {
  const std::string path = cases_path("models/ok_twelve_experts");
  const WeightTable table = test::table_of(path);
  const LoadPlan plan(test::open_model(path), table);
  const std::string prefix = "model.layers.0.mlp.experts.";
  const Shape shape = table.entry(prefix + "gate_up_proj").shape;  // [12, 4, H]
  const auto gate_up = test::load_all(plan, prefix + "gate_up_proj");
  for (int64_t e = 0; e < 12; ++e) {
    for (int64_t i = 0; i < shape[1] * shape[2]; ++i) {
      const auto expected = static_cast<float>(i < 2 * shape[2] ? e : 100 + e);
      ASSERT_EQ(gate_up[static_cast<size_t>(e * shape[1] * shape[2] + i)], expected);
    }
  }
  const auto down = test::load_all(plan, prefix + "down_proj");
  for (size_t i = 0; i < down.size(); ++i) {
    const size_t expert = i / (down.size() / 12);
    ASSERT_EQ(down[i], static_cast<float>(200 + expert));
  }
}

// --- models made here ---

struct Made {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<float> values;
};

void write_file(const std::string& path, const std::vector<Made>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const Made& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(test::file_system(), path, plan_safetensors(specs));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = writer.plan().tensors[i];
    for (const Made& tensor : tensors) {
      if (tensor.name != info.name) continue;
      std::vector<std::byte> bytes(info.bytes());
      if (can_convert(DType::kF32, info.dtype)) {
        convert_elements(tensor.values.data(), DType::kF32, bytes.data(), info.dtype, numel(info.shape));
      }
      writer.write(i, 0, bytes);
    }
  }
  writer.finish();
}

std::vector<float> ramp(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 100;  // exact in bf16
  return values;
}

TEST(LoadPlan, AnySliceInAnyTypeEqualsTheWhole) {
  const test::TempDir dir;
  const Shape shape{6, 40, 33};
  std::mt19937 random(3);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    write_file(dir.path("model.safetensors"), {{"w", dtype, shape, ramp(numel(shape))}});
    WeightTable table;
    table.add("own", shape, "w");
    const LoadPlan plan(test::open_model(dir.path()), table);
    const auto whole = test::load_all(plan, "own");
    ASSERT_EQ(whole, ramp(numel(shape)));
    for (int trial = 0; trial < 60; ++trial) {
      Slice slice;
      for (const int64_t size : shape) {
        const auto a = static_cast<int64_t>(random() % static_cast<uint32_t>(size + 1));
        const auto b = static_cast<int64_t>(random() % static_cast<uint32_t>(size + 1));
        slice.begin.push_back(std::min(a, b));
        slice.end.push_back(std::max(a, b));
      }
      std::vector<float> part(static_cast<size_t>(slice.numel()), NAN);
      plan.load_slice("own", slice, part.data(), DType::kF32);
      std::vector<uint16_t> half(part.size());
      plan.load_slice("own", slice, half.data(), DType::kBF16);
      size_t at = 0;
      for (int64_t i = slice.begin[0]; i < slice.end[0]; ++i) {
        for (int64_t j = slice.begin[1]; j < slice.end[1]; ++j) {
          for (int64_t k = slice.begin[2]; k < slice.end[2]; ++k, ++at) {
            const float expected = whole[static_cast<size_t>((i * shape[1] + j) * shape[2] + k)];
            ASSERT_EQ(part[at], expected) << slice.text();
            ASSERT_EQ(base::bf16_to_float(half[at]), expected) << slice.text();
          }
        }
      }
    }
  }
}

TEST(LoadPlan, LongRunsAndSparseRows) {
  const test::TempDir dir;
  const Shape shape{3, 50'000, 9};  // longer than any buffer; columns 0..1 are sparse in their rows
  write_file(dir.path("model.safetensors"),
             {{"a", DType::kBF16, shape, ramp(numel(shape))}, {"b", DType::kF32, {40, 30'000}, ramp(1'200'000)}});
  WeightTable table;
  table.add("a", shape);
  table.add("b", {40, 30'000});
  const LoadPlan plan(test::open_model(dir.path()), table);
  EXPECT_EQ(test::load_all(plan, "a"), ramp(numel(shape)));
  const Slice columns{{1, 0, 2}, {3, 50'000, 4}};
  std::vector<float> part(static_cast<size_t>(columns.numel()));
  plan.load_slice("a", columns, part.data(), DType::kF32);
  const auto whole = ramp(numel(shape));
  for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[(50'000 + i / 2) * 9 + 2 + i % 2]);
  const Slice few{{0, 7}, {40, 10}};
  std::vector<float> three(120);
  plan.load_slice("b", few, three.data(), DType::kF32);
  const auto rows = ramp(1'200'000);
  for (size_t i = 0; i < 120; ++i) ASSERT_EQ(three[i], rows[i / 3 * 30'000 + 7 + i % 3]);
}

TEST(LoadPlan, ScalarsAndEmptyTensors) {
  const test::TempDir dir;
  write_file(dir.path("model.safetensors"), {{"s", DType::kF32, {}, {7}}, {"e", DType::kF32, {0, 3}, {}}});
  WeightTable table;
  table.add("s", {});
  table.add("e", {0, 3});
  const LoadPlan plan(test::open_model(dir.path()), table);
  EXPECT_EQ(test::load_all(plan, "s"), std::vector<float>{7});
  EXPECT_TRUE(test::load_all(plan, "e").empty());
}

TEST(LoadPlan, ManyThreadsAtOnce) {
  const std::string path = cases_path("models/ok_split");
  const WeightTable table = test::table_of(path);
  const LoadPlan plan(test::open_model(path), table);
  const auto expected = test::load_all(plan, "model.layers.0.mlp.experts.gate_up_proj");
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(test::load_all(plan, "model.layers.0.mlp.experts.gate_up_proj"), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LoadPlan, AllKindsOfFaultsComeInOneError) {
  const test::TempDir dir;
  write_file(dir.path("model.safetensors"), {{"shape", DType::kF32, {2}, {1, 2}},
                                             {"kind", DType::kI64, {2}, {}},
                                             {"extra", DType::kF32, {1}, {1}},
                                             {"mtp.x", DType::kI64, {1}, {}}});
  WeightTable table;
  table.add("shape", {3});
  table.add("kind", {2});
  for (int i = 0; i < 30; ++i) table.add("gone." + std::to_string(i), {1});
  table.pass_through("mtp.");
  const auto error = error_of([&] { LoadPlan(test::open_model(dir.path()), table); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), base::Code::kModel);
  EXPECT_EQ(error->where(), dir.path());
  EXPECT_THAT(error->message(), HasSubstr("33 faults"));
  EXPECT_THAT(error->message(), HasSubstr("shape has [2], expected [3]"));
  EXPECT_THAT(error->message(), HasSubstr("kind is I64"));
  EXPECT_THAT(error->message(), HasSubstr("unexpected (1): extra"));
  EXPECT_THAT(error->message(), HasSubstr("missing (30): gone.0, gone.1"));
  EXPECT_THAT(error->message(), Not(HasSubstr("gone.9")));
}

TEST(LoadPlan, BothLayoutsAtOnceIsAFault) {
  const test::TempDir dir;
  WeightTable table;
  table.add_experts("x", 2, 1, 1);
  std::vector<Made> tensors;
  for (const SourceLayout& layout : table.entry("x.gate_up_proj").layouts) {
    for (const SourcePiece& piece : layout.pieces) {
      tensors.push_back({piece.name, DType::kF32, piece.shape, ramp(numel(piece.shape))});
    }
  }
  for (const SourcePiece& piece : table.entry("x.down_proj").layouts[0].pieces) {
    tensors.push_back({piece.name, DType::kF32, piece.shape, ramp(numel(piece.shape))});
  }
  write_file(dir.path("model.safetensors"), tensors);
  EXPECT_THAT(error_of([&] { LoadPlan(test::open_model(dir.path()), table); })->message(), HasSubstr("unexpected"));
}

TEST(LoadPlan, TiedHead) {
  const test::TempDir dir;
  const std::string path = dir.path("model.safetensors");
  WeightTable table;
  table.add("embed", {4, 2});
  table.add_alias("head", "embed");
  const Made embed{"embed", DType::kF32, {4, 2}, ramp(8)};
  Made head{"head", DType::kF32, {4, 2}, ramp(8)};
  write_file(path, {embed, head});  // a copy
  EXPECT_EQ(LoadPlan(test::open_model(dir.path()), table).layout("embed").name, "plain");
  write_file(path, {head});  // the copy alone
  const LoadPlan alone(test::open_model(dir.path()), table);
  EXPECT_EQ(test::load_all(alone, "embed"), ramp(8));
  head.values[5] += 1;
  write_file(path, {embed, head});
  EXPECT_THAT(error_of([&] { LoadPlan(test::open_model(dir.path()), table); })->message(), HasSubstr("head and embed"));
}

TEST(LoadPlan, DigestTellsModelsApart) {
  const auto digest = [](const std::string& name) {
    const WeightTable table = test::table_of(cases_path("models/" + name));
    return LoadPlan(test::open_model(cases_path("models/" + name)), table).digest();
  };
  EXPECT_EQ(digest("ok_split"), digest("ok_split"));
  EXPECT_NE(digest("ok_split"), digest("ok_fused"));
  EXPECT_NE(digest("ok_split"), digest("ok_twelve_experts"));
}

TEST(LoadPlan, SourceDtype) {
  const test::TempDir dir;
  WeightTable table;
  table.add_experts("x", 1, 1, 1);
  write_file(dir.path("model.safetensors"), {{"x.0.gate_proj.weight", DType::kF32, {1, 1}, {1}},
                                             {"x.0.up_proj.weight", DType::kF16, {1, 1}, {2}},
                                             {"x.0.down_proj.weight", DType::kF16, {1, 1}, {3}}});
  const LoadPlan plan(test::open_model(dir.path()), table);
  EXPECT_EQ(plan.source_dtype("x.gate_up_proj"), std::nullopt);
  EXPECT_EQ(plan.source_dtype("x.down_proj"), DType::kF16);
  EXPECT_EQ(test::load_all(plan, "x.gate_up_proj"), (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace expertmesh::ckpt
