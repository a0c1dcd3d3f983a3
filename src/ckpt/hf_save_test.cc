// SPDX-License-Identifier: Apache-2.0
#include "ckpt/hf_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "base/fault.h"
#include "base/log.h"
#include "base/testing/fault_fs.h"
#include "ckpt/test_support.h"
#include "comm/world.h"

namespace expertmesh::ckpt {
namespace {

using test::cases_path;
using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tensor of a saved model: dtype, shape and bytes.
using Contents = std::map<std::string, std::string>;

Contents contents_of(const std::string& directory) {
  const ModelFiles files(test::file_system(), directory);
  Contents contents;
  for (const ModelTensor& tensor : files.tensors()) {
    std::string bytes(tensor.info.bytes(), '\0');
    files.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    contents[tensor.info.name] =
        fmt::format("{} {} ", dtype_name(tensor.info.dtype), shape_text(tensor.info.shape)) + bytes;
  }
  return contents;
}

// This rank's part of a parameter: rows of dim 0 or, where there are more dims, of dim 1, cut as evenly as can be.
Slice part_of(const Shape& shape, int dim, int rank, int size) {
  Slice slice = Slice::whole(shape);
  if (shape.empty()) {
    if (rank > 0) return {};
    return slice;
  }
  const auto d = static_cast<size_t>(std::min<int>(dim, static_cast<int>(shape.size()) - 1));
  slice.begin[d] = shape[d] * rank / size;
  slice.end[d] = shape[d] * (rank + 1) / size;
  return slice;
}

// Loads this rank's slices of everything and saves them.
void load_and_save(comm::Group& world, base::FileSystem& fs, const LoadPlan& source, const SavePlan& plan,
                   const std::string& directory, DType memory = DType::kF32, int dim = 0) {
  const std::string& from = source.files().directory();
  const std::string config = fs.read_all(from + "/config.json");
  save_model(world, fs, plan, directory, config_for_save(config, plan), companion_files(fs, from),
             [&](ModelSaver& saver) {
               for (const WeightEntry& entry : source.table().entries()) {
                 if (!plan.wants(entry.name)) continue;
                 const Slice slice = part_of(entry.shape, dim, world.rank(), world.size());
                 std::vector<std::byte> buffer(static_cast<size_t>(slice.numel()) * dtype_bytes(memory));
                 source.load_slice(entry.name, slice, buffer.data(), memory);
                 saver.write(entry.name, slice, buffer.data(), memory);
               }
             });
}

void load_and_save(base::FileSystem& fs, const LoadPlan& source, const SavePlan& plan, const std::string& directory) {
  const auto world = comm::make_single_world();
  load_and_save(world->all(), fs, source, plan, directory);
}

struct Source {
  explicit Source(const std::string& directory)
      : table(test::table_of(directory)), plan(test::open_model(directory), table) {}
  WeightTable table;
  LoadPlan plan;
};

class Unchanged : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Unchanged, LoadThenSaveGivesTheSameTensors) {
  const auto& [name, ranks] = GetParam();
  const std::string path = cases_path("models/" + name);
  const Source source(path);
  const SavePlan plan(source.table, &source.plan, {.dtype = DType::kF32, .is_trained = {}});
  for (const int dim : {0, 1}) {
    const test::TempDir out;
    comm::run_threads(ranks, {}, [&](comm::World& world) {
      load_and_save(world.all(), test::file_system(), source.plan, plan, out.path(), DType::kF32, dim);
    });
    EXPECT_EQ(contents_of(out.path()), contents_of(path));
    EXPECT_EQ(test::file_system().read_all(out.path("config.json")),
              test::file_system().read_all(path + "/config.json"));
    EXPECT_THAT(test::file_system().list(out.path()), ElementsAre("config.json", "model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Unchanged,
                         ::testing::Combine(::testing::Values("nano_qwen3", "ok_split", "ok_fused", "ok_sharded",
                                                              "ok_tied", "ok_twelve_experts"),
                                            ::testing::Values(1, 3, 4)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::to_string(std::get<1>(test.param));
                         });

TEST(HfSave, OtherLayoutAndBack) {
  const Source split(cases_path("models/ok_split")), fused(cases_path("models/ok_fused"));
  const test::TempDir out;
  SaveOptions options{.dtype = DType::kF32, .layout = ExpertLayout::kFused, .is_trained = {}};
  load_and_save(test::file_system(), split.plan, SavePlan(split.table, &split.plan, options), out.path());
  EXPECT_EQ(contents_of(out.path()), contents_of(cases_path("models/ok_fused")));
  options.layout = ExpertLayout::kSplit;
  load_and_save(test::file_system(), fused.plan, SavePlan(fused.table, &fused.plan, options), out.path());
  EXPECT_EQ(contents_of(out.path()), contents_of(cases_path("models/ok_split")));
  // The same without a byte from memory: nothing was trained.
  options.is_trained = [](std::string_view) { return false; };
  const SavePlan copy(fused.table, &fused.plan, options);
  EXPECT_FALSE(copy.wants("model.norm.weight"));
  load_and_save(test::file_system(), fused.plan, copy, out.path());
  EXPECT_EQ(contents_of(out.path()), contents_of(cases_path("models/ok_split")));
}

TEST(HfSave, ShardsAndIndex) {
  const Source source(cases_path("models/nano_qwen3"));
  const SavePlan plan(source.table, &source.plan, {.dtype = DType::kF32, .max_shard_bytes = 2000, .is_trained = {}});
  ASSERT_GT(plan.files().size(), 3U);
  EXPECT_EQ(plan.files()[0].name, fmt::format("model-00001-of-{:05}.safetensors", plan.files().size()));
  for (const SavePlan::File& file : plan.files()) {
    EXPECT_TRUE(file.plan.file_bytes - file.plan.head.size() <= 2000 || file.plan.tensors.size() == 1);
  }
  const test::TempDir out;
  comm::run_threads(3, {}, [&](comm::World& world) {
    load_and_save(world.all(), test::file_system(), source.plan, plan, out.path(), DType::kF32, 1);
  });
  EXPECT_EQ(contents_of(out.path()), contents_of(cases_path("models/nano_qwen3")));
  const base::Json index = base::parse_json(test::file_system().read_all(out.path("model.safetensors.index.json")));
  EXPECT_EQ(index.find("metadata")->find("total_size")->try_int64(),
            static_cast<int64_t>(ModelFiles(test::file_system(), out.path()).total_bytes()));
}

TEST(HfSave, DtypesOfTrainedUntrainedAndKept) {
  const test::TempDir in, out;
  WeightTable table;
  table.add("trained", {4});
  table.add("frozen", {4});
  table.add("A_log", {4}).keep_dtype = true;
  table.pass_through("mtp.");
  const std::vector<float> values{1, 2.5F, 3.0009765625F, -4};
  std::vector<TensorSpec> specs;
  for (const char* name : {"trained", "frozen", "A_log", "mtp.x"}) specs.push_back({name, DType::kF32, {4}});
  SafetensorsWriter writer(test::file_system(), in.path("model.safetensors"), plan_safetensors(specs));
  for (size_t i = 0; i < 4; ++i) writer.write(i, 0, std::as_bytes(std::span(values)));
  writer.finish();
  test::write(in.path("config.json"), R"({"torch_dtype": "float32", "text_config": {"dtype": "float32"}, "x": 1e-06})");
  test::write(in.path("tokenizer.json"), "{}");
  test::write(in.path("chat_template.jinja"), "hello");
  test::write(in.path("secrets.txt"), "no");

  const LoadPlan source(test::open_model(in.path()), table);
  const SavePlan plan(table, &source,
                      {.dtype = DType::kBF16, .is_trained = [](std::string_view name) { return name != "frozen"; }});
  load_and_save(test::file_system(), source, plan, out.path());
  const Contents before = contents_of(in.path()), after = contents_of(out.path());
  EXPECT_EQ(after.at("frozen"), before.at("frozen"));
  EXPECT_EQ(after.at("mtp.x"), before.at("mtp.x"));
  EXPECT_EQ(after.at("A_log"), before.at("A_log"));
  EXPECT_EQ(after.at("trained"), std::string("BF16 [4] \x80\x3f\x20\x40\x40\x40\x80\xc0", 17));
  EXPECT_EQ(test::file_system().read_all(out.path("chat_template.jinja")), "hello");
  EXPECT_THAT(test::file_system().list(out.path()),
              ElementsAre("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"));
  // Two of three parameters are still F32, so the config stays as it is; with all in BF16 it says so.
  EXPECT_EQ(config_for_save(R"({"torch_dtype": "float32"})", plan), R"({"torch_dtype": "float32"})");
  EXPECT_EQ(
      config_for_save(R"({"torch_dtype": "float32", "text_config": {"dtype": "float32"}, "x": 1e-06})", DType::kBF16),
      "{\n  \"torch_dtype\": \"bfloat16\",\n  \"text_config\": {\n    \"dtype\": \"bfloat16\"\n  },\n  \"x\": "
      "1e-06\n}\n");
}

TEST(HfSave, NewModelWithoutASource) {
  WeightTable table;
  table.add("embed", {3, 2});
  table.add_alias("head", "embed");
  table.add_experts("experts", 2, 1, 2);
  const SavePlan plan(table, nullptr, {.dtype = DType::kBF16, .is_trained = {}});
  const test::TempDir out;
  const auto world = comm::make_single_world();
  save_model(world->all(), test::file_system(), plan, out.path("new/model"), "{}", {}, [&](ModelSaver& saver) {
    for (const WeightEntry& entry : table.entries()) {
      const std::vector<float> values(static_cast<size_t>(numel(entry.shape)), 2.0F);
      saver.write(entry.name, Slice::whole(entry.shape), values.data(), DType::kF32);
    }
  });
  const Contents contents = contents_of(out.path("new/model"));
  EXPECT_EQ(contents.size(), 7U);
  EXPECT_TRUE(contents.contains("experts.1.up_proj.weight"));
  EXPECT_FALSE(contents.contains("head"));
  LoadPlan(test::open_model(out.path("new/model")), table);
}

TEST(HfSave, CoverageIsChecked) {
  const Source source(cases_path("models/ok_split"));
  const SavePlan plan(source.table, &source.plan, {.dtype = DType::kF32, .is_trained = {}});
  for (const int times : {0, 2}) {
    const test::TempDir out;
    const auto world = comm::make_single_world();
    const auto error = error_of([&] {
      save_model(world->all(), test::file_system(), plan, out.path(), "{}", {}, [&](ModelSaver& saver) {
        for (const WeightEntry& entry : source.table.entries()) {
          const auto values = test::load_all(source.plan, entry.name);
          const int count = entry.name == "model.norm.weight" ? times : 1;
          for (int i = 0; i < count; ++i)
            saver.write(entry.name, Slice::whole(entry.shape), values.data(), DType::kF32);
        }
      });
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), base::Code::kInternal);
    EXPECT_THAT(error->message(), HasSubstr("model.norm.weight"));
    EXPECT_THAT(test::file_system().list(out.path()), IsEmpty());
  }
}

TEST(HfSave, OneFailingRankFailsAll) {
  const Source source(cases_path("models/ok_split"));
  const SavePlan plan(source.table, &source.plan, {.dtype = DType::kF32, .is_trained = {}});
  const test::TempDir out;
  std::vector<std::string> seen(3);
  const auto error = error_of([&] {
    comm::run_threads(3, {}, [&](comm::World& world) {
      try {
        save_model(world.all(), test::file_system(), plan, out.path(), "{}", {}, [&](ModelSaver&) {
          if (world.rank() == 2) throw base::make_error(base::Code::kResources, "base/file", "cannot write: disk full");
        });
      } catch (const base::Error& mine) {
        seen[static_cast<size_t>(world.rank())] = mine.text();
        EXPECT_EQ(mine.code(), base::Code::kResources);
        throw;
      }
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), base::Code::kResources);
  EXPECT_THAT(seen[0], HasSubstr("rank 2 could not save its part"));
  EXPECT_THAT(seen[1], HasSubstr("disk full"));
  EXPECT_THAT(test::file_system().list(out.path()), IsEmpty());
}

// --- saves that fail or are killed ---

// An earlier model with a log beside it, and another model to be saved over it.
class Interrupted : public ::testing::Test {
 protected:
  Interrupted() {
    base::set_log_level(base::LogLevel::kOff);  // hundreds of lines about leftovers
    make_earlier();
  }
  ~Interrupted() override { base::set_log_level(base::LogLevel::kInfo); }

  void make_earlier() {
    test::file_system().remove_tree(out_.path());
    test::file_system().make_directories(out_.path());
    for (const char* name : {"config.json", "model.safetensors"}) {
      test::file_system().copy_file(cases_path(std::string("models/ok_tied/") + name), out_.path(name));
    }
    test::write(out_.path("trainer_log.jsonl"), "log");
  }

  void save(base::FileSystem& fs) { load_and_save(fs, source_.plan, plan_, out_.path()); }

  // Old, new, or no model at all; never a mixture.
  std::string state() {
    EXPECT_EQ(test::file_system().read_all(out_.path("trainer_log.jsonl")), "log");
    if (!test::file_system().stat(out_.path("config.json")).exists) return "none";
    const Contents contents = contents_of(out_.path());
    const std::string config = test::file_system().read_all(out_.path("config.json"));
    if (contents == earlier_ && config == earlier_config_) return "old";
    EXPECT_EQ(contents, wanted_);
    EXPECT_NE(config, earlier_config_);
    return "new";
  }

  const Source source_{cases_path("models/ok_split")};
  const SavePlan plan_{source_.table, &source_.plan, {.dtype = DType::kF32, .max_shard_bytes = 100, .is_trained = {}}};
  const Contents earlier_ = contents_of(cases_path("models/ok_tied")),
                 wanted_ = contents_of(cases_path("models/ok_split"));
  const std::string earlier_config_ = test::file_system().read_all(cases_path("models/ok_tied/config.json"));
  test::TempDir out_;
};

TEST_F(Interrupted, EveryFailingOperationLeavesOldOrNewOrNone) {
  for (const auto code : {base::Code::kResources, base::Code::kCheckpoint}) {
    for (const bool and_later : {false, true}) {
      std::map<std::string, int> states;
      for (long k = 1;; ++k) {
        make_earlier();
        const auto faults = std::make_shared<base::testing::FaultFs::Plan>();
        *faults = {.fail_at = k, .and_later = and_later, .with = code};
        base::testing::FaultFs fs(base::make_posix_file_system(base::Code::kCheckpoint), faults);
        const auto error = error_of([&] { save(fs); });
        if (faults->operations < k) {
          EXPECT_FALSE(error);
          EXPECT_EQ(state(), "new");
          break;
        }
        ASSERT_TRUE(error) << k;
        EXPECT_EQ(error->code(), code);
        EXPECT_FALSE(error->where().empty());
        const std::string after = state();
        ++states[after];
        // What is incomplete is removed, what is complete is not thrown away.
        const bool is_left = test::file_system().stat(out_.path(".model-save.tmp")).exists;
        const bool is_complete = test::file_system().stat(out_.path(".model-save.tmp/config.json")).exists;
        EXPECT_TRUE(after != "none" || is_complete) << k;
        EXPECT_TRUE(and_later || after == "new" || is_left == is_complete) << k;
        save(test::file_system());  // and the next save works
        ASSERT_EQ(state(), "new") << k;
      }
      EXPECT_GT(states["old"], 20);
      EXPECT_GT(states["none"], 5);
    }
  }
}

TEST_F(Interrupted, EveryKillPointLeavesOldOrNewOrNone) {
  base::configure_faults("*:do=count");
  save(test::file_system());
  long points = 0;
  const std::string counts = base::fault_counts();
  for (size_t at = 0; at < counts.size();) {
    const size_t space = counts.find(' ', at), end = counts.find('\n', at);
    points += std::stol(counts.substr(space + 1, end - space - 1));
    at = end + 1;
  }
  base::configure_faults("");
  ASSERT_GT(points, 20);
  std::map<std::string, int> states;
  for (long k = 1; k <= points; ++k) {
    make_earlier();
    const pid_t child = ::fork();
    if (child == 0) {
      base::configure_faults(fmt::format("*:hit={}:do=kill", k));
      save(test::file_system());
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << k;
    ++states[state()];
    save(test::file_system());
    ASSERT_EQ(state(), "new") << k;
    EXPECT_FALSE(test::file_system().stat(out_.path(".model-save.tmp")).exists);
  }
  EXPECT_GT(states["old"], 5);
  EXPECT_GT(states["none"], 5);
  EXPECT_GE(states["new"], 1);  // killed after the last rename, while tidying up
}

TEST_F(Interrupted, SavingOverTheSourceItself) {
  make_earlier();
  for (const char* name : {"config.json", "model.safetensors"}) {
    test::file_system().copy_file(cases_path(std::string("models/ok_split/") + name), out_.path(name));
  }
  const Source here(out_.path());
  const SavePlan plan(here.table, &here.plan, {.dtype = DType::kF32, .max_shard_bytes = 100, .is_trained = {}});
  load_and_save(test::file_system(), here.plan, plan, out_.path());
  EXPECT_EQ(state(), "new");
  EXPECT_FALSE(test::file_system().stat(out_.path("model.safetensors")).exists);
}

}  // namespace
}  // namespace expertmesh::ckpt
