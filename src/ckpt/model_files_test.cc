// SPDX-License-Identifier: Apache-2.0
#include "ckpt/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/safetensors_writer.h"
#include "ckpt/test_support.h"

namespace expertmesh::ckpt {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelFilesTest : public ::testing::Test {
 protected:
  void shard(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (const std::string& tensor : tensors) specs.push_back({tensor, DType::kU8, {4}});
    SafetensorsWriter writer(test::file_system(), dir_.path(name), plan_safetensors(specs));
    for (size_t i = 0; i < tensors.size(); ++i) writer.write(i, 0, test::bytes_of("abcd"));
    writer.finish();
  }
  void index(const std::string& weight_map, const std::string& metadata = "{}") {
    test::write(dir_.path("model.safetensors.index.json"),
                R"({"metadata":)" + metadata + R"(,"weight_map":)" + weight_map + "}");
  }
  std::string refusal() {
    const auto error = error_of([&] { open(); });
    if (!error) return "accepted";
    EXPECT_EQ(error->code(), base::Code::kModel);
    return error->text();
  }
  ModelFiles open() { return {test::file_system(), dir_.path()}; }

  test::TempDir dir_;
};

TEST_F(ModelFilesTest, OneFile) {
  shard("model.safetensors", {"b", "a"});
  const ModelFiles files = open();
  EXPECT_THAT(files.file_names(), ElementsAre("model.safetensors"));
  EXPECT_EQ(files.total_bytes(), 8U);
  const ModelTensor* tensor = files.find("b");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(files.find("c"), nullptr);
  std::string got(2, ' ');
  files.read(*tensor, 1, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, "bc");
  EXPECT_THAT(files.where(*tensor), HasSubstr("model.safetensors: tensor b"));
  EXPECT_THROW(files.read(*tensor, 3, std::as_writable_bytes(std::span(got))), base::Error);
}

TEST_F(ModelFilesTest, ShardsInAFolder) {
  test::file_system().make_directories(dir_.path("sub"));
  shard("sub/x.safetensors", {"a"});
  shard("y.safetensors", {"b"});
  index(R"({"a":"sub/x.safetensors","b":"y.safetensors"})", R"({"total_size":8})");
  EXPECT_EQ(open().tensors().size(), 2U);
}

TEST_F(ModelFilesTest, IndexAndFilesMustAgree) {
  shard("x.safetensors", {"a", "b"});
  shard("y.safetensors", {"c"});
  index(R"({"a":"x.safetensors","c":"y.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("not in the index (1): b (in x.safetensors)"));
  index(R"({"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("b (not in y.safetensors)"));
  index(R"({"a":"x.safetensors","b":"x.safetensors","c":"y.safetensors","d":"y.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("d (not in y.safetensors)"));
  shard("y.safetensors", {"c", "a"});
  index(R"({"a":"x.safetensors","b":"x.safetensors","c":"y.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("a (in x.safetensors and y.safetensors)"));
}

TEST_F(ModelFilesTest, ListsMissingFiles) {
  std::string map = "{";
  for (int i = 0; i < 20; ++i) map += fmt::format("{}\"t{}\":\"s{}.safetensors\"", i == 0 ? "" : ",", i, i);
  index(map + "}");
  EXPECT_THAT(refusal(), HasSubstr("20 of 20 named weight files are not there"));
  EXPECT_THAT(refusal(), HasSubstr("s9.safetensors, ..."));
}

TEST_F(ModelFilesTest, NamesThatLeaveTheDirectory) {
  for (const char* name :
       {"../x.safetensors", "/etc/passwd", "a/../../x.safetensors", "..", "", "a\\u0000b.safetensors"}) {
    index(fmt::format(R"({{"a":"{}"}})", name));
    EXPECT_THAT(refusal(), HasSubstr("outside of the model directory")) << name;
  }
  index(R"({"a":"pytorch_model.bin"})");
  EXPECT_THAT(refusal(), HasSubstr("no .safetensors file"));
  test::file_system().make_directories(dir_.path("d.safetensors"));
  index(R"({"a":"d.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("not there"));
}

TEST_F(ModelFilesTest, LinksThatLeaveTheDirectory) {
  const test::TempDir other;
  shard("real.safetensors", {"a"});
  test::file_system().rename(dir_.path("real.safetensors"), other.path("real.safetensors"));
  ASSERT_EQ(::symlink(other.path("real.safetensors").c_str(), dir_.path("model.safetensors").c_str()), 0);
  EXPECT_THAT(refusal(), HasSubstr("leads out of the model directory"));
}

TEST_F(ModelFilesTest, LinksOfTheHubsCacheAreFollowed) {
  test::file_system().make_directories(dir_.path("blobs"));
  test::file_system().make_directories(dir_.path("snapshots/0123"));
  shard("blobs/abc", {"a"});
  ASSERT_EQ(::symlink("../../blobs/abc", dir_.path("snapshots/0123/model.safetensors").c_str()), 0);
  EXPECT_EQ(ModelFiles(test::file_system(), dir_.path("snapshots/0123")).tensors().size(), 1U);
}

TEST_F(ModelFilesTest, MalformedIndex) {
  test::write(dir_.path("model.safetensors.index.json"), "{\"weight_map\": {\n \"a\": }}");
  EXPECT_THAT(refusal(), HasSubstr("index.json:2:7: bad index (JSON)"));
  for (const char* text : {"[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}",
                           "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}"}) {
    test::write(dir_.path("model.safetensors.index.json"), text);
    EXPECT_THAT(refusal(), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST_F(ModelFilesTest, HugeIndexStaysWithinTheMemoryOfItsText) {
  std::string map = "{";
  for (int i = 0; i < 300'000; ++i) {
    map += fmt::format("{}\"model.layers.{}.mlp.experts.{}.weight\":\"a.safetensors\"", i == 0 ? "" : ",", i / 1000, i);
  }
  index(map + "}");
  struct rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(refusal(), HasSubstr("1 of 1 named weight files"));
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, static_cast<long>(2 * map.size() >> 10) + (64 << 10));
}

TEST_F(ModelFilesTest, WrongTotalSizeIsNoError) {
  shard("x.safetensors", {"a"});
  for (const char* metadata : {R"({"total_size":5})", R"({"total_size":"x"})", "[]", "{}"}) {
    index(R"({"a":"x.safetensors"})", metadata);
    EXPECT_EQ(refusal(), "accepted") << metadata;
  }
}

TEST_F(ModelFilesTest, NoWeights) {
  EXPECT_THAT(refusal(), HasSubstr("neither model.safetensors nor"));
  test::write(dir_.path("pytorch_model.bin"), "x");
  EXPECT_THAT(refusal(), HasSubstr("pickle"));
  test::file_system().remove_file(dir_.path("pytorch_model.bin"));
  shard("model-00001-of-00002.safetensors", {"a"});
  EXPECT_THAT(refusal(), HasSubstr("need the index"));
  EXPECT_THAT(error_of([&] { ModelFiles(test::file_system(), dir_.path("none")); })->text(),
              HasSubstr("no such model directory"));
}

TEST_F(ModelFilesTest, AFileThatShrinksMeanwhileIsAnError) {
  shard("model.safetensors", {"a"});
  const ModelFiles files = open();
  ASSERT_EQ(::truncate(dir_.path("model.safetensors").c_str(), 20), 0);
  std::string got(4, ' ');
  const auto error = error_of([&] { files.read(*files.find("a"), 0, std::as_writable_bytes(std::span(got))); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), base::Code::kModel);
  EXPECT_THAT(error->message(), HasSubstr("ends at byte"));
}

}  // namespace
}  // namespace expertmesh::ckpt
