// SPDX-License-Identifier: Apache-2.0
// What the files of tests/cases/data do not show.
#include "data/convert/converter.h"

#include <gmock/gmock.h>

#include "data/testing.h"
#include "data/turns.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Row convert(std::string_view converter, std::string_view json) {
  return find_converter(converter)->convert(base::parse_json(json));
}

std::string error(std::string_view converter, std::string_view json) {
  return testing::error_of([&] { convert(converter, json); }).text();
}

TEST(Alpaca, MediaHistoryAndToolsAreNotIgnored) {
  EXPECT_THAT(error("alpaca", R"({"instruction": "q", "output": "a", "images": ["cat.png"]})"), HasSubstr("images"));
  EXPECT_THAT(error("alpaca", R"({"instruction": "q", "output": "a", "history": [["x", "y"]]})"), HasSubstr("history"));
  EXPECT_THAT(error("alpaca", R"({"instruction": "q", "output": "a", "tools": "[{}]"})"), HasSubstr("tools"));
  EXPECT_EQ(convert("alpaca", R"({"instruction": "q", "output": "a <video>", "images": [], "history": null})")
                .messages.size(),
            2U);
}

TEST(Alpaca, InputAlone) {
  EXPECT_EQ(convert("alpaca", R"({"input": "q", "output": "a"})").messages[0].content[0].value, "q");
  EXPECT_THAT(error("alpaca", R"({"prompt": "q", "output": "a"})"), HasSubstr("Keys that are there: prompt, output"));
}

TEST(Sharegpt, WeightsAndToolsText) {
  const Row row = convert("sharegpt", R"({"conversations": [{"from": "human", "value": "q"},
      {"from": "gpt", "value": "a"}], "tools": "[{\"name\":\"f\",\"x\":1.50}]"})");
  EXPECT_EQ(row.messages[0].loss_weight, 0.0F);
  EXPECT_EQ(row.messages[1].loss_weight, 1.0F);
  EXPECT_EQ(row.tools, R"([{"name": "f", "x": 1.5}])");
  EXPECT_THAT(error("sharegpt", R"({"conversations": [], "system": "S"})"), HasSubstr("system"));
}

TEST(Tools, OneObjectEmptyTextAndNonsense) {
  const std::string rest = R"("conversations": [])";
  EXPECT_EQ(convert("sharegpt", "{" + rest + R"(, "tools": "{\"name\": \"f\"}"})").tools, R"([{"name": "f"}])");
  EXPECT_EQ(convert("sharegpt", "{" + rest + R"(, "tools": ""})").tools, std::nullopt);
  EXPECT_EQ(convert("sharegpt", "{" + rest + R"(, "tools": "[]"})").tools, std::nullopt);
  EXPECT_THAT(error("sharegpt", "{" + rest + R"(, "tools": "[1]"})"), HasSubstr("an integer"));
  EXPECT_THAT(error("sharegpt", "{" + rest + R"(, "tools": 5})"), HasSubstr("tools"));
}

// The content of a tool message stays the text of a tool message, whether it is JSON or not.
TEST(Row22, PairToolContentIsText) {
  const Row row = convert("pair", R"({"chosen": [{"role": "tool", "content": "{\"name\": \"f\", \"arguments\": {}}"}],
      "rejected": [{"role": "tool", "content": "plain"}]})");
  EXPECT_EQ(row.messages[0].content[0].type, BlockType::kText);
  EXPECT_EQ(row.messages[0].content[0].value, R"({"name": "f", "arguments": {}})");
  EXPECT_EQ(row.rejected[0].content[0].value, "plain");
}

// A null is an absent field, in messages and in rows.
TEST(Row23, NullIsAbsent) {
  const Row row = convert("", R"({"messages": [{"role": "user", "content": [], "loss_weight": null},
      {"role": "assistant", "content": [{"type": "text", "value": "a"}], "loss_weight": null}],
      "tools": null, "extra_info": null, "chosen_messages": null})");
  EXPECT_EQ(row.messages[1].loss_weight, 1.0F);
  EXPECT_EQ(row.tools, std::nullopt);
  EXPECT_EQ(convert("alpaca", R"({"system": null, "instruction": "q", "input": null, "output": "a"})").messages.size(),
            2U);
  EXPECT_THAT(error("alpaca", R"({"instruction": "q", "output": null})"), HasSubstr("output is missing"));
}

TEST(Internal, MisspelledKeysAreNotDefaults) {
  EXPECT_THAT(error("", R"({"messages": [{"role": "user", "content": [], "loss_wieght": 0}]})"),
              HasSubstr("Did you mean loss_weight?"));
  EXPECT_NO_THROW(convert("", R"({"messages": [{"role": "user", "content": [], "name": "x"}]})"));
}

TEST(Internal, RowsOfOtherFormatsNameTheirConverter) {
  EXPECT_THAT(error("", R"({"instruction": "q", "output": "a"})"), HasSubstr("converter: alpaca"));
  EXPECT_THAT(error("", R"({"conversations": []})"), HasSubstr("converter: sharegpt"));
  EXPECT_THAT(error("", R"({"input_ids": []})"), HasSubstr("converter: tokenized"));
  EXPECT_THAT(error("", R"({"chosen": []})"), HasSubstr("converter: pair"));
}

TEST(Internal, ReasoningBelongsToTheAssistant) {
  const Row row = convert("", R"({"messages": [{"role": "user", "content": [{"type": "reasoning", "value": "hm"}]},
      {"role": "assistant", "content": [{"type": "text", "value": "a"}]}]})");
  EXPECT_THAT(testing::error_of([&] { row_cuts(row, Use::kSft); }).text(), HasSubstr("message 1"));
}

TEST(Openai, ToolCallsReasoningPartsAndWeight) {
  const Row row = convert("openai", R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "42"},
      {"role": "assistant", "content": "done", "weight": 0}], "tools": [{"type": "function"}]})");
  EXPECT_EQ(row.messages[0].content.size(), 2U);
  EXPECT_THAT(row.messages[1].content,
              ElementsAre(Block{BlockType::kReasoning, "r"},
                          Block{BlockType::kToolCall, R"({"name": "f", "arguments": {"x": 1}})"}));
  EXPECT_EQ(row.messages[2].role, Role::kTool);
  EXPECT_EQ(row.messages[3].loss_weight, 0.0F);
  EXPECT_EQ(row.tools, R"([{"type": "function"}])");
  EXPECT_THAT(row_cuts(row, Use::kSft), ElementsAre(2));
}

TEST(Openai, WhatItCannotTakeIsRefused) {
  EXPECT_THAT(error("openai", R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
              HasSubstr("image_url"));
  EXPECT_THAT(error("openai", R"({"messages": [{"role": "assistant", "content": null}]})"), HasSubstr("content"));
  EXPECT_THAT(error("openai", R"({"messages": [{"role": "assistant", "content": "", "function_call": {}}]})"),
              HasSubstr("function_call"));
  EXPECT_THAT(error("openai", R"({"messages": [{"role": "developer", "content": "x"}]})"), HasSubstr("developer"));
  EXPECT_THAT(error("openai", R"({"messages": [{"role": "user", "content": [{"type": "text", "value": "x"}]}]})"),
              HasSubstr("internal format"));
}

TEST(Tokenized, IdsAreCheckedOneByOne) {
  EXPECT_THAT(convert("tokenized", R"({"input_ids": [1, 2], "labels": [-100, 2]})").labels, ElementsAre(-100, 2));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [1, -2], "labels": [1, 2]})"), HasSubstr("input_ids[1] is -2"));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [2147483648], "labels": [1]})"), HasSubstr("2147483648"));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [1.0], "labels": [1]})"), HasSubstr("integer"));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [1], "labels": [-1]})"), HasSubstr("labels[0] is -1"));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [], "labels": []})"), HasSubstr("empty"));
  EXPECT_THAT(error("tokenized", R"({"input_ids": [1], "labels": [1], "attention_mask": [0]})"),
              HasSubstr("attention_mask"));
}

// Fractional weights stay, tiny ones make a turn context.
TEST(Cuts, FollowTheWeights) {
  const auto row = [](double weight) {
    return convert("", fmt::format(R"({{"messages": [{{"role": "user", "content": []}},
        {{"role": "assistant", "content": [{{"type": "text", "value": "a"}}], "loss_weight": {}}},
        {{"role": "assistant", "content": [{{"type": "text", "value": "b"}}]}}]}})",
                                   weight));
  };
  EXPECT_THAT(row_cuts(row(0.5), Use::kSft), ElementsAre(2, 3));
  EXPECT_THAT(row_cuts(row(1e-6), Use::kSft), ElementsAre(3));
}

TEST(Table, EveryConverterRefusesAnEmptyRow) {
  for (const Converter& converter : converters()) {
    EXPECT_EQ(testing::error_of([&] { converter.convert(base::parse_json("{}")); }).code(), base::Code::kData);
    EXPECT_EQ(find_converter(converter.name), &converter);
  }
}

}  // namespace
}  // namespace expertmesh::data
