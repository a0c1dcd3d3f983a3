// SPDX-License-Identifier: Apache-2.0
// tests/cases/render: every dialogue and markup, as text and as token ids, or refused as given there.
#include "data/render.h"

#include <gtest/gtest.h>

#include <map>

#include "data/convert/converter.h"
#include "data/testing.h"
#include "data/tokenizer.h"

namespace expertmesh::data {
namespace {

using base::Json;

const Json& vectors() {
  static const Json kAll = testing::read_json(testing::source_path("tests/cases/render/vectors.json"));
  return kAll;
}

const Json& vector(std::string_view id) {
  for (const Json& item : *vectors().try_array()) {
    if (*item.find("id")->try_string() == id) return item;
  }
  ADD_FAILURE() << "no vector " << id;
  return vectors().try_array()->front();
}

const Tokenizer& tokenizer(const std::string& name) {
  static std::map<std::string, Tokenizer> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  return loaded
      .emplace(name, Tokenizer::load(*testing::file_system(), testing::source_path("tests/cases/render/" + name)))
      .first->second;
}

const Tokenizer& tokenizer_for(std::string_view markup) {
  return tokenizer(markup == "qwen3_5" ? "tokenizer_3_5" : "tokenizer");
}

// The whole dialogue as the target, also where the last turn is not the assistant's. Its tools may be no JSON, which is
// the renderer's to notice, so they do not go through the converter.
Row row_of(const Json& item) {
  Json::Object messages_only = {{"messages", *item.find("messages")}};
  Row row = find_converter("")->convert(Json(messages_only));
  if (const Json* tools = item.find("tools")) row.tools = *tools->try_string();
  return row;
}

Rendered render(const Json& item, std::string_view markup) {
  const Row row = row_of(item);
  return Renderer(tokenizer_for(markup), *find_markup(markup)).render(row, static_cast<int>(row.messages.size()));
}

struct VectorCase {
  std::string id, markup;
};

std::vector<VectorCase> all_cases() {
  std::vector<VectorCase> cases;
  for (const Json& item : *vectors().try_array()) {
    for (const char* markup : {"qwen3", "qwen3_5", "qwen3_2507"})
      cases.push_back({*item.find("id")->try_string(), markup});
  }
  return cases;
}

class RenderVectors : public ::testing::TestWithParam<VectorCase> {};

TEST_P(RenderVectors, TextOrError) {
  const Json& item = vector(GetParam().id);
  const Json& expected = *item.find(GetParam().markup);
  const Json* error = expected.find("error");
  if (error == nullptr) {
    const Rendered rendered = render(item, GetParam().markup);
    EXPECT_EQ(rendered.text.substr(0, rendered.prompt_bytes), *expected.find("prompt")->try_string());
    EXPECT_EQ(rendered.text.substr(rendered.prompt_bytes), *expected.find("supervised")->try_string());
    return;
  }
  const base::Error got = testing::error_of([&] { render(item, GetParam().markup); });
  EXPECT_EQ(static_cast<int64_t>(got.code()), *error->find("exit")->try_int64());
  for (const Json& word : *error->find("contains")->try_array()) {
    EXPECT_NE(got.text().find(*word.try_string()), std::string::npos) << got.text();
  }
}

// As rows of a data set, refused dialogues stop the run with file and line. T, which ends with a question, is a good
// row: its last supervised turn is trained on.
TEST_P(RenderVectors, RefusedAsRow) {
  const Json& item = vector(GetParam().id);
  if (item.find(GetParam().markup)->find("error") == nullptr || GetParam().id == "T") return;
  const testing::TempDir dir;
  Json::Object row = {{"messages", *item.find("messages")}};
  if (const Json* tools = item.find("tools")) row.emplace_back("tools", *tools);
  const std::string rows = dir.write("rows.jsonl", testing::turn_row("q", "a") + base::dump_json(Json(row)) + "\n");
  DatasetOptions options = testing::text_options(rows);
  options.chat_markup = GetParam().markup;
  if (GetParam().markup == "qwen3_5") options.model_dir = testing::source_path("tests/cases/render/tokenizer_3_5");
  const base::Error error = testing::error_of([&] { testing::build(options); });
  EXPECT_EQ(error.code(), base::Code::kData);
  EXPECT_EQ(error.where(), rows + ":2");
}

INSTANTIATE_TEST_SUITE_P(All, RenderVectors, ::testing::ValuesIn(all_cases()),
                         [](const ::testing::TestParamInfo<VectorCase>& param) {
                           return param.param.id + "_" + param.param.markup;
                         });

TEST(RenderTokens, IdsAndBoundary) {
  const Json all = testing::read_json(testing::source_path("tests/cases/render/tokens.json"));
  int checked = 0;
  for (const Json& item : *all.try_array()) {
    const Json* id = item.find("vector");
    if (id == nullptr) continue;
    SCOPED_TRACE(*id->try_string() + " " + *item.find("markup")->try_string());
    const std::string& markup = *item.find("markup")->try_string();
    const Rendered rendered = render(vector(*id->try_string()), markup);
    Json::Array ids;
    for (const int32_t token : rendered.ids) ids.emplace_back(int64_t{token});
    EXPECT_EQ(Json(ids), *item.find("input_ids"));
    EXPECT_EQ(int64_t{rendered.prompt_tokens}, *item.find("prompt_tokens")->try_int64());
    ++checked;
  }
  EXPECT_EQ(checked, 50);
}

// DATA-01: the end of turn and the newline after it are supervised.
TEST(RenderTokens, EndOfTurnIsSupervised) {
  const Rendered rendered = render(vector("A"), "qwen3");
  const Tokenizer& tokens = tokenizer("tokenizer");
  ASSERT_GT(rendered.ids.size(), rendered.prompt_tokens + 2);
  EXPECT_EQ(rendered.ids[rendered.ids.size() - 2], *tokens.token_to_id("<|im_end|>"));
  EXPECT_EQ(tokens.decode(std::span(rendered.ids).last(1)), "\n");
}

// What is tokenised in two pieces equals the whole.
TEST(RenderTokens, SplitAtTheOpenerChangesNothing) {
  for (const VectorCase& item : all_cases()) {
    if (vector(item.id).find(item.markup)->find("error") != nullptr) continue;
    const Rendered rendered = render(vector(item.id), item.markup);
    EXPECT_EQ(rendered.ids, tokenizer_for(item.markup).encode(rendered.text)) << item.id;
  }
}

Message text_message(Role role, std::string text) { return {role, {{BlockType::kText, std::move(text)}}, 1.0F}; }

Row dialogue(std::vector<Message> messages) {
  Row row;
  row.messages = std::move(messages);
  return row;
}

TEST(Chatml, IsPlain) {
  const Renderer renderer(tokenizer("tokenizer"), *find_markup("chatml"));
  const Row row = dialogue({text_message(Role::kSystem, "S"), text_message(Role::kUser, "q"),
                            text_message(Role::kTool, "t"), text_message(Role::kAssistant, "a")});
  const Rendered rendered = renderer.render(row, 4);
  EXPECT_EQ(rendered.text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>tool\nt<|im_end|>\n"
            "<|im_start|>assistant\na<|im_end|>\n");
  EXPECT_EQ(rendered.text.substr(rendered.prompt_bytes), "a<|im_end|>\n");
}

TEST(Chatml, RefusesWhatItWouldDrop) {
  const Renderer renderer(tokenizer("tokenizer"), *find_markup("chatml"));
  Row row = dialogue({text_message(Role::kUser, "q"), text_message(Role::kAssistant, "a")});
  row.tools = "[{\"name\": \"f\"}]";
  EXPECT_NE(testing::error_of([&] { renderer.render(row, 2); }).text().find("tools"), std::string::npos);
  row.tools.reset();
  row.messages[1].content.push_back({BlockType::kReasoning, "because"});
  EXPECT_NE(testing::error_of([&] { renderer.render(row, 2); }).text().find("reasoning"), std::string::npos);
}

// A special token of two characters or more in a row's text is broken; overlapping ones as well.
TEST(Escape, BreaksSpecialTokensOnly) {
  const Renderer renderer(tokenizer("tokenizer"), *find_markup("qwen3"));
  const Row row = dialogue({text_message(Role::kUser, "a<<|im_end|> <think> <|im_start|<|im_start|>"),
                            text_message(Role::kAssistant, "plain < text")});
  const Rendered rendered = renderer.render(row, 2);
  EXPECT_NE(rendered.text.find("a<<\u200b|im_end|> <think> <|im_start|<\u200b|im_start|>"), std::string::npos);
  EXPECT_NE(rendered.text.find("plain < text<|im_end|>"), std::string::npos);
}

TEST(Conversation, IsEncodedWholeForScoring) {
  const Renderer renderer(tokenizer("tokenizer"), *find_markup("qwen3"));
  const Row row = dialogue({text_message(Role::kUser, "q")});
  EXPECT_EQ(renderer.encode_conversation(row), tokenizer("tokenizer").encode("<|im_start|>user\nq<|im_end|>\n"));
  const Row answered = dialogue({text_message(Role::kUser, "q"), text_message(Role::kAssistant, "a")});
  EXPECT_EQ(renderer.encode_conversation(answered), renderer.render(answered, 2).ids);
}

}  // namespace
}  // namespace expertmesh::data
