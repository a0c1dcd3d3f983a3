// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_split.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/tokenizer_regex.h"
#include "data/tokenizer_testing.h"

namespace expertmesh::data {
namespace {

std::vector<std::string> words(const Splitter& splitter, std::string_view text) {
  std::vector<size_t> ends;
  splitter.split(text, ends);
  std::vector<std::string> out;
  size_t from = 0;
  for (const size_t end : ends) {
    EXPECT_GT(end, from) << "an empty word";
    out.emplace_back(text.substr(from, end - from));
    from = end;
  }
  EXPECT_EQ(from, text.size());
  return out;
}

using Words = std::vector<std::string>;

TEST(TokenizerSplit, QwenWordsOfKnownTexts) {
  const auto splitter = make_qwen_splitter(false);
  EXPECT_EQ(words(*splitter, ""), Words{});
  EXPECT_EQ(words(*splitter, "I'm here, it'S"), (Words{"I", "'m", " here", ",", " it", "'S"}));
  EXPECT_EQ(words(*splitter, "'\xc5\xbfo"), (Words{"'\xc5\xbf", "o"}));
  EXPECT_EQ(words(*splitter, "12 a1"), (Words{"1", "2", " a", "1"}));
  EXPECT_EQ(words(*splitter, "a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(words(*splitter, "a \n \nb"), (Words{"a", " \n \n", "b"}));
  EXPECT_EQ(words(*splitter, "x  \n  "), (Words{"x", "  \n", "  "}));
  EXPECT_EQ(words(*splitter, "!!\r\n\n a"), (Words{"!!\r\n\n", " a"}));
  EXPECT_EQ(words(*splitter, "\ta\t!"), (Words{"\ta", "\t", "!"}));
  EXPECT_EQ(words(*splitter, "(a) (b"), (Words{"(a", ")", " (", "b"}));
  EXPECT_EQ(words(*splitter, "a\xcc\x81"), (Words{"a", "\xcc\x81"}));
  EXPECT_EQ(words(*make_qwen_splitter(true), "a\xcc\x81"), (Words{"a\xcc\x81"}));
}

// The own matcher against PCRE2 on text that both know: characters of Unicode 14, no U+180E in \s thanks to the
// translation.
TEST(TokenizerSplit, QwenMatcherEqualsPcre2) {
  const std::vector<std::string> pieces = {"'s",
                                           "'S",
                                           "'t",
                                           "'re",
                                           "'VE",
                                           "'ll",
                                           "'d",
                                           "'",
                                           "'\xc5\xbf",
                                           " ",
                                           "  ",
                                           "\t",
                                           "\n",
                                           "\r\n",
                                           "\r",
                                           "\xc2\xa0",
                                           "\xe3\x80\x80",
                                           "\xe2\x80\xa8",
                                           "\xe1\xa0\x8e",
                                           "a",
                                           "word",
                                           "\xc3\xa9",
                                           "e\xcc\x81",
                                           "\xe0\xa4\xb9\xe0\xa4\xbf",
                                           "1",
                                           "42",
                                           "!",
                                           "...",
                                           "<",
                                           "\xf0\x9f\x98\x80",
                                           "\xe2\x80\x8d",
                                           "\xe4\xbd\xa0",
                                           "\xc2\xbd"};
  const std::pair<std::string_view, bool> kinds[] = {{kQwen3Expression, false}, {kQwen35Expression, true}};
  for (const auto& [expression, marks] : kinds) {
    const auto own = make_qwen_splitter(marks);
    const auto general = make_regex_splitter(expression);
    std::mt19937 dice(3);
    for (int round = 0; round < 20000; ++round) {
      const std::string text = testing::random_text(dice, pieces, 1 + dice() % 20, round % 2 == 0 ? 0x80 : 0x500);
      ASSERT_EQ(words(*own, text), words(*general, text)) << text;
    }
  }
}

// PCRE2 10.42 has the tables of Unicode 14; the own matcher follows the reference library, which has those of 16.
TEST(TokenizerSplit, LettersAfterUnicode14) {
  const std::string text = "a\xf0\x9e\x93\x90";  // a, U+1E4D0
  EXPECT_EQ(words(*make_splitter(kQwen3Expression), text).size(), 1U);
  EXPECT_EQ(words(*make_regex_splitter(kQwen3Expression), text).size(), 2U);
}

TEST(TokenizerSplit, GapsAndEmptyMatches) {
  EXPECT_EQ(words(*make_regex_splitter("b+"), "abbac"), (Words{"a", "bb", "ac"}));
  EXPECT_EQ(words(*make_regex_splitter("b*"), "abba"), (Words{"a", "bb", "a"}));
  EXPECT_EQ(words(*make_regex_splitter("(?=\xc3\xa9)"),
                  "a\xc3\xa9"
                  "b"),
            (Words{"a",
                   "\xc3\xa9"
                   "b"}));
  EXPECT_EQ(words(*make_regex_splitter("x"), ""), Words{});
}

TEST(TokenizerRegex, RewritesWhatTheEnginesReadDifferently) {
  EXPECT_EQ(words(*make_regex_splitter("\\s+"), "a\xe1\xa0\x8e b"), (Words{"a\xe1\xa0\x8e", " ", "b"}));
  EXPECT_EQ(words(*make_regex_splitter("\\S+"), "a\xe1\xa0\x8e b"), (Words{"a\xe1\xa0\x8e", " ", "b"}));
  EXPECT_EQ(words(*make_regex_splitter("[^\\s]+"), "a\xe1\xa0\x8e b"), (Words{"a\xe1\xa0\x8e", " ", "b"}));
  EXPECT_EQ(translate_expression("\\p{^L}\\P{N}\\P{^Lu}\\p{Han}"), "\\P{L}\\P{N}\\p{Lu}\\p{sc:Han}");
  EXPECT_EQ(translate_expression("a{2}b{1,3}?c{2,}(?:d|e)*?f++[^\\r\\n\\-]"),
            "a{2}b{1,3}?c{2,}(?:d|e)*?f++[^\\r\\n\\-]");
}

TEST(TokenizerRegex, RefusesWhatMeansSomethingElse) {
  for (const char* expression :
       {"\\w+",    "\\bx",    "\\h",      "^a",      "a$",          "(?i)a",  "(?<n>a)", "(?#c)", "a{2}?",
        "a{1,2}+", "a{,3}",   "{",        "a{9999}", "[[:alpha:]]", "[a&&b]", "[]a]",    "[a",    "[\\S]",
        "[\\s-a]", "[a-\\s]", "\\p{Foo}", "\\p{L",   "\\pL",        "\\x41",  "\\1",     "\\"}) {
    try {
      translate_expression(expression);
      ADD_FAILURE() << expression << " was accepted";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kModel);
      EXPECT_NE(error.message().find("not supported"), std::string::npos) << error.text();
    }
  }
}

TEST(TokenizerRegex, RefusesWhatIsNoExpression) {
  for (const std::string& expression :
       {std::string("("), std::string(")"), std::string("*a"), std::string("[z-a]"), std::string(20000, 'a')}) {
    EXPECT_THROW(make_regex_splitter(expression), base::Error) << expression.substr(0, 10);
  }
}

// An expression that backtracks exponentially ends with an error, not never.
TEST(TokenizerRegex, GivesUpOnHostileExpressions) {
  const auto splitter = make_regex_splitter("(?:a+)+\\p{N}");
  std::vector<size_t> ends;
  try {
    splitter->split(std::string(64, 'a') + "c", ends);
    ADD_FAILURE() << "matched";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kData);
    EXPECT_NE(error.message().find("gave up at byte 0"), std::string::npos) << error.text();
  }
}

TEST(TokenizerRegex, DeepRecursionFindsItsStack) {
  const auto splitter = make_regex_splitter("(?:a|b)*c");
  std::string text;
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? 'a' : 'b';
  EXPECT_EQ(words(*splitter, text + "cd"), (Words{text + "c", "d"}));
}

}  // namespace
}  // namespace expertmesh::data
