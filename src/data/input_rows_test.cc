// SPDX-License-Identifier: Apache-2.0
#include "data/input_rows.h"

#include <gmock/gmock.h>

#include "data/testing.h"
#include "data/tokenizer.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

class InputRows : public ::testing::Test {
 protected:
  InputRows() {
    options_.model_dir = testing::source_path("tests/cases/render/tokenizer");
    options_.chat_markup = "qwen3";
    options_.vocabulary_rows = 512;
  }
  std::vector<InputRow> load(std::string_view rows) {
    const auto fs = testing::file_system();
    InputReader reader(*fs, options_);
    return load_input_rows(*fs, dir_.write("rows.jsonl", rows), reader);
  }
  std::string error(std::string_view rows) {
    return testing::error_of([&] { load(rows); }).text();
  }
  std::string text_of(const InputRow& row) {
    return Tokenizer::load(*testing::file_system(), options_.model_dir).decode(row.input_ids);
  }
  TempDir dir_;
  InputOptions options_;
};

TEST_F(InputRows, IdsTextAndMessagesInOrder) {
  const auto rows = load(
      "{\"input_ids\": [3, 1], \"labels\": [3, 1]}\n\n"
      "{\"text\": \"Hello <|im_end|>\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n" +
      testing::turn_row("q", "a"));
  const Tokenizer tokenizer = Tokenizer::load(*testing::file_system(), options_.model_dir);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_THAT(rows[0].input_ids, ElementsAre(3, 1));
  EXPECT_EQ(rows[1].input_ids, tokenizer.encode("Hello <|im_end|>"));
  EXPECT_FALSE(rows[1].is_conversation);
  EXPECT_EQ(
      rows[2].input_ids,
      tokenizer.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\na<|im_end|>\n"));
  EXPECT_TRUE(rows[2].is_conversation);
  EXPECT_EQ(rows[3].input_ids, rows[2].input_ids);
}

TEST_F(InputRows, IdsMayStandAtPlacesOfTheirOwn) {
  options_.position_axes = 3;
  const auto rows = load(
      "{\"input_ids\": [3, 1]}\n"
      "{\"input_ids\": [3, 1], \"position_ids\": [4, 7]}\n"
      "{\"input_ids\": [3, 1], \"position_ids\": [[4, 7], [0, 1], [2, 2]]}\n");
  EXPECT_TRUE(rows[0].positions.empty());
  EXPECT_THAT(rows[1].positions, ElementsAre(ElementsAre(4, 7)));
  EXPECT_THAT(rows[2].positions, ElementsAre(ElementsAre(4, 7), ElementsAre(0, 1), ElementsAre(2, 2)));
  const std::string ids = "{\"input_ids\": [3, 1], \"position_ids\": ";
  EXPECT_THAT(error(ids + "[4]}\n"), HasSubstr("position_ids has 1 entries for 2 tokens"));
  EXPECT_THAT(error(ids + "[[4, 7], [0, 1]]}\n"), HasSubstr("position_ids has 2 axes, the model's positions have 3"));
  EXPECT_THAT(error(ids + "[[4, 7], [0], [2, 2]]}\n"), HasSubstr("1 entries for 2 tokens"));
  EXPECT_THAT(error(ids + "[-1, 7]}\n"), HasSubstr("position_ids holds -1"));
  EXPECT_THAT(error(ids + "[\"a\", 7]}\n"), HasSubstr("list of integers"));
  EXPECT_THAT(error("{\"text\": \"x\", \"position_ids\": [4]}\n"), HasSubstr("position_ids beside text"));
  options_.position_axes = 1;
  EXPECT_THAT(error(ids + "[[4, 7], [0, 1], [2, 2]]}\n"), HasSubstr("has 3 axes, the model's positions have 1"));
  options_.position_axes = 0;
  EXPECT_THAT(error(ids + "[4, 7]}\n"), HasSubstr("position_ids are for score"));
}

TEST_F(InputRows, IdsNeedNoTokenizer) {
  options_.model_dir = dir_.path();
  EXPECT_EQ(load("{\"input_ids\": [1]}\n").size(), 1U);
  EXPECT_THAT(error("{\"text\": \"x\"}\n"), HasSubstr("tokenizer.json"));
}

TEST_F(InputRows, BadRowsAreNamed) {
  EXPECT_THAT(error("{\"input_ids\": [1]}\n{\"input_ids\": [512]}\n"),
              ::testing::AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("512"), HasSubstr("embedding")));
  EXPECT_THAT(error("{\"input_ids\": [-1]}\n"), HasSubstr("-1"));
  EXPECT_THAT(error("{\"input_ids\": [1.5]}\n"), HasSubstr("integers"));
  EXPECT_THAT(error("{\"input_ids\": []}\n"), HasSubstr("no tokens"));
  EXPECT_THAT(error("{\"text\": \"\"}\n"), HasSubstr("no tokens"));
  EXPECT_THAT(error("{\"text\": \"x\", \"input_ids\": [1]}\n"), HasSubstr("both"));
  EXPECT_THAT(error("{\"prompt\": \"x\"}\n"), HasSubstr("input_ids, text or messages"));
  EXPECT_THAT(error("{\"messages\": []}\n"), HasSubstr("messages is empty"));
  EXPECT_THAT(error("\n"), HasSubstr("no rows"));
}

TEST_F(InputRows, OtherRowsHaveAnotherFingerprint) {
  const auto of = [&](std::vector<InputRow> rows) { return fingerprint(rows); };
  const std::string whole = of({{.input_ids = {3, 1}}, {.input_ids = {2}}});
  EXPECT_THAT(whole, HasSubstr("2 rows, checksum "));
  EXPECT_EQ(of({{.input_ids = {3, 1}}, {.input_ids = {2}}}), whole);
  EXPECT_NE(of({{.input_ids = {3, 1}}, {.input_ids = {4}}}), whole);
  EXPECT_NE(of({{.input_ids = {3}}, {.input_ids = {1, 2}}}), whole);
  EXPECT_NE(of({{.input_ids = {3, 1}}, {.input_ids = {2}, .positions = {{7}}}}), whole);
  EXPECT_THAT(of({{.input_ids = {3, 1}}}), HasSubstr("1 row, "));
}

constexpr std::string_view kQuestion = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n";

TEST_F(InputRows, QuestionsGetTheOpeningOfTheAnswer) {
  options_.opens_answer = true;
  EXPECT_EQ(text_of(load(kQuestion)[0]), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
  options_.thinking = false;
  EXPECT_EQ(text_of(load(kQuestion)[0]),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_FALSE(load(kQuestion)[0].opens_thought);

  options_.chat_markup = "qwen3_5";
  EXPECT_FALSE(load(kQuestion)[0].opens_thought);
  options_.thinking = true;
  EXPECT_TRUE(load(kQuestion)[0].opens_thought);
  EXPECT_TRUE(text_of(load(kQuestion)[0]).ends_with("assistant\n<think>\n"));
  // Ids and text are what they are.
  EXPECT_THAT(load("{\"input_ids\": [3, 1]}\n")[0].input_ids, ElementsAre(3, 1));
  EXPECT_EQ(text_of(load("{\"text\": \"one two\"}\n")[0]), "one two");
}

TEST_F(InputRows, QuestionsWithToolsNameThem) {
  options_.opens_answer = true;
  const std::string tool =
      R"({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}})";
  const std::string row =
      fmt::format("{{\"messages\": [{{\"role\": \"user\", \"content\": \"q\"}}], \"tools\": [{}]}}\n", tool);
  EXPECT_THAT(text_of(load(row)[0]), HasSubstr("weather"));
}

TEST_F(InputRows, WhatCannotBeAnsweredIsNamed) {
  options_.opens_answer = true;
  EXPECT_THAT(error(testing::turn_row("q", "a")), HasSubstr("the last message is the assistant's"));
  EXPECT_THAT(error("{\"messages\": []}\n"), HasSubstr("messages is empty"));
  options_.thinking = true;
  for (const char* markup : {"chatml", "qwen3_2507"}) {
    options_.chat_markup = markup;
    EXPECT_THAT(error(kQuestion), ::testing::AllOf(HasSubstr(markup), HasSubstr("thinking")));
  }
}

TEST_F(InputRows, MarkupIsTheConfigurationsOrTheModels) {
  const auto fs = testing::file_system();
  EXPECT_TRUE(InputReader(*fs, options_).has_markup());
  options_.chat_markup = "auto";
  options_.model_dir = dir_.path();
  EXPECT_FALSE(InputReader(*fs, options_).has_markup());
  EXPECT_FALSE(InputReader(*fs, options_).has_tokenizer());
  dir_.write("chat_template.jinja", "x");
  EXPECT_TRUE(InputReader(*fs, options_).has_markup());
}

}  // namespace
}  // namespace expertmesh::data
