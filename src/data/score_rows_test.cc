// SPDX-License-Identifier: Apache-2.0
#include "data/score_rows.h"

#include <gmock/gmock.h>

#include "data/testing.h"
#include "data/tokenizer.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

class ScoreRows : public ::testing::Test {
 protected:
  std::vector<ScoreRow> load(std::string_view rows) {
    ScoreOptions options;
    options.input = dir_.write("rows.jsonl", rows);
    options.model_dir = model_dir_;
    options.chat_markup = "qwen3";
    options.vocabulary_rows = 512;
    return load_score_rows(*testing::file_system(), options);
  }
  std::string error(std::string_view rows) {
    return testing::error_of([&] { load(rows); }).text();
  }
  TempDir dir_;
  std::string model_dir_ = testing::source_path("tests/cases/render/tokenizer");
};

TEST_F(ScoreRows, IdsTextAndMessagesInOrder) {
  const auto rows = load(
      "{\"input_ids\": [3, 1], \"labels\": [3, 1]}\n\n"
      "{\"text\": \"Hello <|im_end|>\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n" +
      testing::turn_row("q", "a"));
  const Tokenizer tokenizer = Tokenizer::load(*testing::file_system(), model_dir_);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_THAT(rows[0].input_ids, ElementsAre(3, 1));
  EXPECT_EQ(rows[1].input_ids, tokenizer.encode("Hello <|im_end|>"));
  EXPECT_EQ(rows[1].line, 3U);
  EXPECT_EQ(
      rows[2].input_ids,
      tokenizer.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\na<|im_end|>\n"));
  EXPECT_EQ(rows[3].input_ids, rows[2].input_ids);
}

TEST_F(ScoreRows, IdsNeedNoTokenizer) {
  model_dir_ = dir_.path();
  EXPECT_EQ(load("{\"input_ids\": [1]}\n").size(), 1U);
  EXPECT_THAT(error("{\"text\": \"x\"}\n"), HasSubstr("tokenizer.json"));
}

TEST_F(ScoreRows, BadRowsAreNamed) {
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

}  // namespace
}  // namespace expertmesh::data
