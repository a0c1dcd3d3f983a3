// SPDX-License-Identifier: Apache-2.0
#include "data/markup/markup.h"

#include <gmock/gmock.h>

#include "data/markup/model_template.h"
#include "data/markup/strip.h"
#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::HasSubstr;

// Templates with the features of the official ones; the wording is ours.
constexpr std::string_view kHybrid =
    "{%- if tools %}<|im_start|>system ... You are provided with function signatures within <tools> ... \"arguments\": "
    "<args-json-object>{% endif %}{% set r = message.reasoning_content %}<think>{{ r }}</think><tool_response>"
    "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}<|im_end|>";
constexpr std::string_view kInstruct =
    "{%- if tools %}<|im_start|>system ... You are provided with function signatures within <tools> ... \"arguments\": "
    "<args-json-object>{% endif %}<tool_response><|im_end|>";
constexpr std::string_view kXml =
    "{{ raise_exception('x') }}<|im_start|><IMPORTANT><function=a><parameter=b>{{ message.reasoning_content }}"
    "{% if enable_thinking %}<think>{% endif %}<tool_response>";
constexpr std::string_view kPlain =
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string chosen(const std::optional<std::string>& text) { return std::string(choose_markup("auto", text).name); }

TEST(ChooseMarkup, RecognisesTemplates) {
  EXPECT_EQ(chosen(std::string(kHybrid)), "qwen3");
  EXPECT_EQ(chosen(std::string(kInstruct)), "qwen3_2507");
  EXPECT_EQ(chosen(std::string(kXml)), "qwen3_5");
  EXPECT_EQ(chosen(std::string(kPlain)), "chatml");
  EXPECT_EQ(chosen(std::nullopt), "chatml");
}

// The templates that scripts/make_tokenizer.py puts beside its tokenizers.
TEST(ChooseMarkup, RecognisesOurOwnTemplates) {
  for (const std::string name : {"qwen3", "qwen3_5"}) {
    EXPECT_EQ(chosen(testing::read_text(testing::source_path("scripts/chat_templates/" + name + ".jinja"))), name);
  }
}

TEST(ChooseMarkup, UnknownTemplatesAreRefused) {
  const std::string older = std::string(kInstruct) + "You are Qwen, a helpful assistant.";
  const std::string older_hybrid = std::string(kHybrid) + "You are a helpful assistant.";
  const std::string thinking_only = std::string(kInstruct) + "<think>";
  for (const std::string& text : {older, older_hybrid, thinking_only, std::string("[INST] {{ x }} [/INST]")}) {
    const base::Error error = testing::error_of([&] { choose_markup("auto", text); });
    EXPECT_EQ(error.code(), base::Code::kConfig);
    EXPECT_THAT(error.text(), HasSubstr("chat_markup"));
  }
  // A name wins over whatever the model brings.
  EXPECT_EQ(choose_markup("qwen3_5", older).name, "qwen3_5");
  EXPECT_THAT(testing::error_of([&] { choose_markup("qwen4", std::nullopt); }).text(), HasSubstr("qwen3_2507"));
}

// What a model is given to continue: reasoning of earlier answers is left out, and how an answer begins depends on
// whether the model shall think; nothing said is the template's own default.
TEST(OpenAnswer, BeginsAsTheTemplatesDo) {
  const std::vector<Turn> turns = {{.role = Role::kSystem, .text = " S ", .reasoning = "", .calls = {}},
                                   {.role = Role::kUser, .text = "q1", .reasoning = "", .calls = {}},
                                   {.role = Role::kAssistant, .text = "a1", .reasoning = "r1", .calls = {}},
                                   {.role = Role::kUser, .text = "q2", .reasoning = "", .calls = {}}};
  const std::string history =
      "<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
      "<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n";
  const std::string quick = "<think>\n\n</think>\n\n";
  struct Case {
    std::string_view markup;
    std::optional<bool> thinking;
    std::string system, opening;
  };
  const std::vector<Case> cases = {
      {"qwen3", std::nullopt, " S ", ""},
      {"qwen3", true, " S ", ""},
      {"qwen3", false, " S ", quick},
      {"qwen3_2507", std::nullopt, " S ", ""},
      {"qwen3_2507", true, " S ", ""},
      {"qwen3_2507", false, " S ", ""},
      {"qwen3_5", std::nullopt, "S", "<think>\n"},
      {"qwen3_5", true, "S", "<think>\n"},
      {"qwen3_5", false, "S", quick},
  };
  for (const Case& item : cases) {
    const RenderInput input{.turns = turns, .tools = {}, .open_answer = true, .thinking = item.thinking};
    EXPECT_EQ(find_markup(item.markup)->render(input), "<|im_start|>system\n" + item.system + history + item.opening)
        << item.markup;
  }
}

TEST(ModelTemplate, IsFoundInItsThreePlaces) {
  const auto fs = testing::file_system();
  const testing::TempDir dir;
  EXPECT_EQ(read_chat_template(*fs, dir.path()), std::nullopt);
  dir.write("chat_template.json", R"({"chat_template": "third"})");
  EXPECT_EQ(read_chat_template(*fs, dir.path()), "third");
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "second"}]})");
  EXPECT_EQ(read_chat_template(*fs, dir.path()), "second");
  dir.write("chat_template.jinja", "first");
  EXPECT_EQ(read_chat_template(*fs, dir.path()), "first");
}

TEST(ModelTemplate, BrokenConfigIsTheModelsFault) {
  const testing::TempDir dir;
  dir.write("tokenizer_config.json", "{");
  const base::Error error = testing::error_of([&] { read_chat_template(*testing::file_system(), dir.path()); });
  EXPECT_EQ(error.code(), base::Code::kModel);
  EXPECT_THAT(error.where(), HasSubstr("tokenizer_config.json:1"));
}

TEST(Strip, AsPythonDoes) {
  EXPECT_EQ(strip_space(" \t\n\v\f\r\x1c\x1f a b \xe3\x80\x80\xc2\x85\xc2\xa0"), "a b");
  EXPECT_EQ(strip_space("\xe2\x80\x8b x"), "\xe2\x80\x8b x");  // U+200B is no white space
  EXPECT_EQ(strip_space(" \n "), "");
  EXPECT_EQ(strip_newlines("\n\n a \n"), " a ");
  EXPECT_EQ(lstrip_newlines("\n\n"), "");
  EXPECT_EQ(rstrip_newlines("\r\n"), "\r");
}

}  // namespace
}  // namespace expertmesh::data
