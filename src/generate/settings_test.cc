// SPDX-License-Identifier: Apache-2.0
#include "generate/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"

namespace expertmesh::generate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Settings : public ::testing::Test {
 protected:
  Settings() {
    std::string pattern = std::filesystem::temp_directory_path() / "expertmesh_settings_XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~Settings() override { std::filesystem::remove_all(dir_); }

  ModelSettings read(std::string_view generation, std::string_view config = "{}",
                     const data::Tokenizer* tokenizer = nullptr) {
    if (!generation.empty()) fs_->create(dir_ + "/generation_config.json")->append(generation);
    return read_model_settings(*fs_, dir_, base::parse_json(config), 500, tokenizer);
  }
  std::string error(std::string_view generation, std::string_view config = "{}") {
    try {
      read(generation, config);
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kModel);
      return error.text();
    }
    return "no error";
  }

  std::string dir_;
  std::unique_ptr<base::FileSystem> fs_ = base::make_posix_file_system(base::Code::kModel);
};

TEST_F(Settings, ComeFromTheFile) {
  const ModelSettings settings =
      read(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [7, 3, 7]})",
           R"({"eos_token_id": 9})");
  EXPECT_TRUE(settings.samples);
  EXPECT_EQ(settings.sampling, (Sampling{0.6, 20, 0.95}));
  EXPECT_THAT(settings.end_ids, ElementsAre(3, 7));
  EXPECT_THAT(settings.ignored, IsEmpty());
}

TEST_F(Settings, DefaultsAreThoseOfTransformers) {
  const ModelSettings settings = read("");
  EXPECT_FALSE(settings.samples);
  EXPECT_EQ(settings.sampling, (Sampling{1, 50, 1}));
  EXPECT_THAT(settings.end_ids, IsEmpty());
  // Null is absent.
  EXPECT_EQ(read(R"({"top_k": null, "temperature": null, "do_sample": null})").sampling, settings.sampling);
}

TEST_F(Settings, EndIdsFallBackFromFileToFileToTokenizer) {
  EXPECT_THAT(read("", R"({"eos_token_id": 9})").end_ids, ElementsAre(9));
  EXPECT_THAT(read("", R"({"text_config": {"eos_token_id": [4]}})").end_ids, ElementsAre(4));
  EXPECT_THAT(read(R"({"eos_token_id": []})", R"({"eos_token_id": 9})").end_ids, ElementsAre(9));
  EXPECT_THAT(read(R"({"eos_token_id": 5})", R"({"eos_token_id": 9})").end_ids, ElementsAre(5));

  const std::string folder = std::string(EXPERTMESH_SOURCE_DIR) + "/tests/cases/render/tokenizer";
  const auto tokenizer = data::Tokenizer::load(*fs_, folder);
  ASSERT_TRUE(tokenizer.eos_id().has_value());
  EXPECT_THAT(read(R"({"eos_token_id": null})", R"({"eos_token_id": null})", &tokenizer).end_ids,
              ElementsAre(*tokenizer.eos_id()));
}

TEST_F(Settings, WrongValuesNameFileAndKey) {
  EXPECT_THAT(error(R"({"temperature": "hot"})"),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("temperature"), HasSubstr("hot")));
  EXPECT_THAT(error(R"({"temperature": -1})"), AllOf(HasSubstr("temperature"), HasSubstr("-1")));
  EXPECT_THAT(error(R"({"do_sample": 1})"), AllOf(HasSubstr("do_sample"), HasSubstr("true or false")));
  EXPECT_THAT(error(R"({"top_k": 2.5})"), AllOf(HasSubstr("top_k"), HasSubstr("2.5")));
  EXPECT_THAT(error(R"({"top_k": -1})"), AllOf(HasSubstr("top_k"), HasSubstr("-1")));
  EXPECT_THAT(error(R"({"top_p": 0})"), AllOf(HasSubstr("top_p"), HasSubstr("above 0")));
  EXPECT_THAT(error(R"({"top_p": 1e999})"), HasSubstr("generation_config.json"));
  EXPECT_THAT(error(R"({"eos_token_id": "x"})"), AllOf(HasSubstr("eos_token_id"), HasSubstr("\"x\"")));
  EXPECT_THAT(error(R"({"eos_token_id": [1, 500]})"), AllOf(HasSubstr("eos_token_id"), HasSubstr("0 to 499")));
  EXPECT_THAT(error(R"({"eos_token_id": -1})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(error(R"({"repetition_penalty": true})"), HasSubstr("repetition_penalty"));
  EXPECT_THAT(error("[]"), AllOf(HasSubstr("generation_config.json"), HasSubstr("no JSON object")));
  EXPECT_THAT(error(R"({"top_k": 1, "top_k": 2})"), AllOf(HasSubstr("generation_config.json:1"), HasSubstr("top_k")));
  EXPECT_THAT(error("{\"top_k\": 1"), HasSubstr("generation_config.json:1"));
  EXPECT_THAT(error("{}", R"({"eos_token_id": 1.5})"), AllOf(HasSubstr("/config.json"), HasSubstr("eos_token_id")));
}

TEST_F(Settings, WhatIsNotBuiltIsNamed) {
  EXPECT_THAT(read(R"({"repetition_penalty": 1.0, "num_beams": 1, "min_p": null})").ignored, IsEmpty());
  EXPECT_THAT(
      read(R"({"repetition_penalty": 1.1, "min_p": 0.05, "suppress_tokens": [1], "stop_strings": ["."]})").ignored,
      ElementsAre("repetition_penalty", "min_p", "suppress_tokens", "stop_strings"));
}

TEST_F(Settings, WeightsSayWhetherTheyAreBf16) {
  const auto says = [](std::string_view config) { return has_bf16_weights(base::parse_json(config), "config.json"); };
  EXPECT_TRUE(says(R"({"dtype": "bfloat16"})"));
  EXPECT_TRUE(says(R"({"torch_dtype": "torch.bfloat16"})"));
  EXPECT_TRUE(says(R"({"text_config": {"dtype": "bfloat16"}})"));
  EXPECT_FALSE(says(R"({"dtype": "float32", "text_config": {"dtype": "bfloat16"}})"));
  EXPECT_FALSE(says(R"({"dtype": "float16"})"));
  EXPECT_FALSE(says("{}"));
}

TEST(ChooseSampling, WishesReplaceTheModelsValuesOneByOne) {
  const ModelSettings sampled{.samples = true, .sampling = {0.6, 20, 0.95}, .end_ids = {}, .ignored = {}};
  const ModelSettings plain{.samples = false, .sampling = {1, 50, 1}, .end_ids = {}, .ignored = {}};
  EXPECT_EQ(choose_sampling(sampled, {}), (Sampling{0.6, 20, 0.95}));
  EXPECT_EQ(choose_sampling(sampled, {.top_k = 0}), (Sampling{0.6, 0, 0.95}));
  EXPECT_EQ(choose_sampling(sampled, {.temperature = 1.5, .top_p = 1.0}), (Sampling{1.5, 20, 1}));
  EXPECT_TRUE(choose_sampling(sampled, {.greedy = true}).is_greedy());
  EXPECT_TRUE(choose_sampling(sampled, {.temperature = 0.0}).is_greedy());
  EXPECT_TRUE(choose_sampling(plain, {}).is_greedy());
  EXPECT_EQ(choose_sampling(plain, {.temperature = 0.8}), (Sampling{0.8, 50, 1}));
}

TEST(ChooseSampling, IsToldInWords) {
  EXPECT_EQ(describe({}), "greedy");
  EXPECT_EQ(describe({0.6, 20, 0.95}), "temperature 0.6, top-k 20, top-p 0.95");
  EXPECT_EQ(describe({1, 0, 1}), "temperature 1");
}

}  // namespace
}  // namespace expertmesh::generate
