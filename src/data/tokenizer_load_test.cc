// SPDX-License-Identifier: Apache-2.0
// Files of a tokenizer that are wrong, hostile or merely of another kind: each is refused with the place and the
// reason.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "data/testing.h"
#include "data/tokenizer.h"
#include "data/tokenizer_spec.h"
#include "data/tokenizer_testing.h"

namespace expertmesh::data {
namespace {

using base::Json;
using testing::tiny_tokenizer;

Tokenizer parse(const Json& json, std::string_view config = "") {
  return Tokenizer(
      parse_tokenizer_spec(base::dump_json(json), "DIR/tokenizer.json", config, "DIR/tokenizer_config.json"));
}

Json& at(Json& json, std::string_view key) {
  for (auto& [name, value] : *json.try_object()) {
    if (name == key) return value;
  }
  json.set(key, nullptr);
  return json.try_object()->back().second;
}
Json& at(Json& json, size_t index) { return json.try_array()->at(index); }
Json json(const char* text) { return base::parse_json(text); }

struct Refused {
  const char* name;
  std::function<void(Json&)> change;
  const char* where;
  const char* message;
};

class TokenizerLoadRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(TokenizerLoadRefuses, WithPlaceAndReason) {
  Json file = tiny_tokenizer();
  GetParam().change(file);
  const base::Error error = testing::error_of([&] { parse(file); });
  EXPECT_EQ(error.code(), base::Code::kModel);
  EXPECT_EQ(error.where(), std::string("DIR/tokenizer.json") + GetParam().where);
  EXPECT_NE(error.message().find(GetParam().message), std::string::npos) << error.text();
}

const Refused kRefused[] = {
    {"not_an_object", [](Json& f) { f = json("[1]"); }, "", "is a list; an object is needed"},
    {"no_model", [](Json& f) { at(f, "model") = nullptr; }, ": model", "an object is needed"},
    {"unigram", [](Json& f) { at(at(f, "model"), "type") = "Unigram"; }, ": model.type", "only byte-level BPE"},
    {"dropout", [](Json& f) { at(at(f, "model"), "dropout") = 0.1; }, ": model.dropout", "not supported"},
    {"byte_fallback", [](Json& f) { at(at(f, "model"), "byte_fallback") = true; }, ": model.byte_fallback", "true"},
    {"prefix", [](Json& f) { at(at(f, "model"), "continuing_subword_prefix") = "##"; },
     ": model.continuing_subword_prefix", "\"##\""},
    {"flag_is_text", [](Json& f) { at(at(f, "model"), "ignore_merges") = "no"; }, ": model.ignore_merges",
     "a boolean is needed"},
    {"vocab_is_a_list", [](Json& f) { at(at(f, "model"), "vocab") = json("[]"); }, ": model.vocab",
     "an object is needed"},
    {"vocab_lacks_a_byte", [](Json& f) { at(at(f, "model"), "vocab") = json("{\"a\": 1}"); }, ": model.vocab",
     "single byte 0x00"},
    {"id_negative", [](Json& f) { at(at(f, "model"), "vocab").set("ab", -1); }, ": model.vocab", "token \"ab\" is -1"},
    {"id_fraction", [](Json& f) { at(at(f, "model"), "vocab").set("ab", 1.5); }, ": model.vocab",
     "token \"ab\" is 1.5"},
    {"id_text", [](Json& f) { at(at(f, "model"), "vocab").set("ab", "7"); }, ": model.vocab", "whole number"},
    {"id_too_large", [](Json& f) { at(at(f, "model"), "vocab").set("ab", int64_t{1} << 31); }, ": model.vocab",
     "2147483648"},
    {"id_twice", [](Json& f) { at(at(f, "model"), "vocab").set("abc", 256); }, "", "same id 256"},
    {"token_empty", [](Json& f) { at(at(f, "model"), "vocab").set("", 258); }, ": model.vocab", "empty"},
    {"merge_left", [](Json& f) { at(at(at(f, "model"), "merges"), 0) = json("[\"zz\", \"b\"]"); }, ": model.merges[0]",
     "left token \"zz\""},
    {"merge_right", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = json("[\"a\", \"zz\"]"); }, ": model.merges[1]",
     "right token \"zz\""},
    {"merge_result", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = json("[\"a\", \"c\"]"); }, ": model.merges[1]",
     "result \"ac\""},
    {"merge_twice", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = json("\"a b\""); }, ": model.merges[1]",
     "there twice"},
    {"merge_of_three", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = json("[\"a\", \"b\", \"c\"]"); },
     ": model.merges[1]", "two tokens"},
    {"merge_text_of_three", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = "a b c"; }, ": model.merges[1]",
     "two tokens"},
    {"merge_number", [](Json& f) { at(at(at(f, "model"), "merges"), 1) = 5; }, ": model.merges[1]", "two tokens"},
    {"no_merges", [](Json& f) { at(at(f, "model"), "merges") = nullptr; }, ": model.merges", "a list is needed"},
    {"added_same_id", [](Json& f) { at(at(at(f, "added_tokens"), 1), "id") = 300; }, "", "same id 300"},
    {"added_id_of_a_token", [](Json& f) { at(at(at(f, "added_tokens"), 1), "id") = 97; }, "", "same id 97"},
    {"added_twice", [](Json& f) { at(at(at(f, "added_tokens"), 1), "content") = "<s>"; }, ": added_tokens[1]",
     "there twice"},
    {"added_other_id", [](Json& f) { at(at(at(f, "added_tokens"), 1), "content") = "abc"; }, ": added_tokens[1]",
     "id 301 here and id 257"},
    {"added_empty", [](Json& f) { at(at(at(f, "added_tokens"), 0), "content") = ""; }, ": added_tokens[0]", "empty"},
    {"added_long", [](Json& f) { at(at(at(f, "added_tokens"), 0), "content") = std::string(600, 'x'); },
     ": added_tokens[0]", "600 bytes"},
    {"added_without_id", [](Json& f) { at(f, "added_tokens") = json("[{\"content\": \"<s>\"}]"); },
     ": added_tokens[0].id", "is missing"},
    {"added_single_word", [](Json& f) { at(at(at(f, "added_tokens"), 0), "single_word") = true; }, ": added_tokens[0]",
     "single_word"},
    {"normalizer", [](Json& f) { at(f, "normalizer") = json("{\"type\": \"NFKC\"}"); }, ": normalizer.type",
     "\"NFKC\" is not supported"},
    {"normalizer_in_sequence",
     [](Json& f) {
       at(f, "normalizer") = json(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})");
     },
     ": normalizer.normalizers[1].type", "\"Lowercase\""},
    {"no_pre_tokenizer", [](Json& f) { at(f, "pre_tokenizer") = nullptr; }, ": pre_tokenizer", "ByteLevel is needed"},
    {"whitespace", [](Json& f) { at(f, "pre_tokenizer") = json("{\"type\": \"Whitespace\"}"); }, ": pre_tokenizer.type",
     "\"Whitespace\""},
    {"prefix_space", [](Json& f) { at(at(at(at(f, "pre_tokenizer"), "pretokenizers"), 1), "add_prefix_space") = true; },
     ": pre_tokenizer.pretokenizers[1].add_prefix_space", "not supported"},
    {"behavior", [](Json& f) { at(at(at(at(f, "pre_tokenizer"), "pretokenizers"), 0), "behavior") = "Removed"; },
     ": pre_tokenizer.pretokenizers[0].behavior", "\"Removed\""},
    {"no_byte_level", [](Json& f) { at(at(f, "pre_tokenizer"), "pretokenizers").try_array()->pop_back(); },
     ": pre_tokenizer", "no ByteLevel"},
    {"expression",
     [](Json& f) { at(at(at(at(at(f, "pre_tokenizer"), "pretokenizers"), 0), "pattern"), "Regex") = "a\\wb"; },
     ": pre_tokenizer.pretokenizers[0].pattern.Regex", "\"\\w\" at offset 1"},
    {"expression_broken",
     [](Json& f) { at(at(at(at(at(f, "pre_tokenizer"), "pretokenizers"), 0), "pattern"), "Regex") = "(a"; },
     ": pre_tokenizer.pretokenizers[0].pattern.Regex", "not valid"},
    {"template",
     [](Json& f) {
       at(f, "post_processor") =
           json(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]})");
     },
     ": post_processor", "puts tokens around"},
    {"decoder", [](Json& f) { at(f, "decoder") = json("{\"type\": \"WordPiece\"}"); }, ": decoder.type",
     "\"WordPiece\""},
    {"no_decoder", [](Json& f) { at(f, "decoder") = nullptr; }, ": decoder", "ByteLevel is needed"},
};

INSTANTIATE_TEST_SUITE_P(Files, TokenizerLoadRefuses, ::testing::ValuesIn(kRefused),
                         [](const auto& test) { return test.param.name; });

TEST(TokenizerLoad, AcceptsOtherSpellingsOfTheSame) {
  const auto ids = parse(tiny_tokenizer()).encode("abc <s>");
  Json file = tiny_tokenizer();
  at(at(file, "model"), "merges") = json(R"(["a b", "ab c"])");
  at(at(file, "model"), "type") = nullptr;  // old files name no type
  at(file, "normalizer") = json(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})");
  at(file, "post_processor") = json(
      R"({"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}]})");
  at(file, "decoder") = json(R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})");
  EXPECT_EQ(parse(file).encode("abc <s>"), ids);
}

TEST(TokenizerLoad, GapsAndTokensOutsideTheAlphabet) {
  Json file = tiny_tokenizer();
  at(at(file, "model"), "vocab").set("two words", 2147483646);
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.id_limit(), 2147483647);
  EXPECT_EQ(tokenizer.token_bytes(2147483646), "two words");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2147483646}), "two words");
}

TEST(TokenizerLoad, AddedTokenThatIsInTheVocabulary) {
  Json file = tiny_tokenizer();
  at(at(file, "model"), "vocab").set("<s>", 300);
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_TRUE(tokenizer.is_special(300));
}

TEST(TokenizerLoad, OneTextAsAnExpression) {
  Json file = tiny_tokenizer();
  at(at(at(at(file, "pre_tokenizer"), "pretokenizers"), 0), "pattern") = json("{\"String\": \"b.\"}");
  EXPECT_EQ(parse(file).encode("ab.abc"), (std::vector<int32_t>{'a', 'b', '.', 257}));
}

// Each round changes some bytes of a good file: it loads or is refused, and what loads can encode and decode.
TEST(TokenizerLoad, ChangedBytesNeverCrash) {
  const std::string good = base::dump_json(tiny_tokenizer());
  const std::string config =
      R"({"eos_token": "<s>", "pad_token": {"content": "<t>"}, "added_tokens_decoder": {"300": {"content": "<s>", "special": true}}})";
  const std::vector<std::string> bits = {"{",    "}",  "[", "]",  "\"",      ",",    ":",       "null", "true",
                                         "1e99", "-1", "0", "\\", "\\u0000", "\xff", "(?:a+)+", "a b",  "\xcc\x81"};
  std::mt19937 dice(9);
  size_t loaded = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good, other = config;
    std::string& target = round % 3 == 0 ? other : text;
    for (uint32_t changes = 1 + dice() % 3; changes > 0 && !target.empty(); --changes) {
      const size_t place = dice() % target.size();
      const size_t length = std::min<size_t>(dice() % 4, target.size() - place);
      target.replace(place, length,
                     dice() % 2 == 0 ? bits[dice() % bits.size()] : std::string(1, static_cast<char>(dice() % 256)));
    }
    try {
      const Tokenizer tokenizer(parse_tokenizer_spec(text, "t", other, "c"));
      const auto ids = tokenizer.encode("abc <s> caf\xc3\xa9 e\xcc\x81 12<t>\n\n ");
      tokenizer.decode(ids);
      ++loaded;
    } catch (const base::Error& error) {
      ASSERT_TRUE(error.code() == base::Code::kModel || error.code() == base::Code::kData) << error.text();
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100U);
  EXPECT_GT(refused, 1000U);
}

struct RefusedConfig {
  const char* name;
  const char* config;
  const char* where;
  const char* message;
};

class TokenizerConfigRefuses : public ::testing::TestWithParam<RefusedConfig> {};

TEST_P(TokenizerConfigRefuses, WithPlaceAndReason) {
  const base::Error error = testing::error_of([&] { parse(tiny_tokenizer(), GetParam().config); });
  EXPECT_EQ(error.code(), base::Code::kModel);
  EXPECT_EQ(error.where(), std::string("DIR/tokenizer_config.json") + GetParam().where);
  EXPECT_NE(error.message().find(GetParam().message), std::string::npos) << error.text();
}

const RefusedConfig kRefusedConfigs[] = {
    {"not_json", "{\"a\": }", ":1:7", "not valid JSON"},
    {"key_twice", "{\"eos_token\": \"<s>\", \"eos_token\": \"<t>\"}", ":1:22", "eos_token"},
    {"a_list", "[]", "", "an object is needed"},
    {"eos_unknown", R"({"eos_token": "<x>"})", ": eos_token", "\"<x>\" is not in tokenizer.json"},
    {"eos_number", R"({"eos_token": 3})", ": eos_token.content", "a string is needed"},
    {"bos_added", R"({"add_bos_token": true})", ": add_bos_token", "not supported"},
    {"other_id", R"({"added_tokens_decoder": {"301": {"content": "<s>"}}})", ": added_tokens_decoder.301",
     "id 301 here and id 300"},
    {"unknown_token", R"({"added_tokens_decoder": {"5": {"content": "<x>"}}})", ": added_tokens_decoder.5",
     "not in tokenizer.json"},
    {"id_is_no_number", R"({"added_tokens_decoder": {"5x": {"content": "<s>"}}})", ": added_tokens_decoder",
     "\"5x\" is no token id"},
    {"special_list", R"({"additional_special_tokens": ["<y>"]})", ": additional_special_tokens[0]", "\"<y>\""},
    {"template_number", R"({"chat_template": 1})", ": chat_template", "a list is needed"},
};

INSTANTIATE_TEST_SUITE_P(Files, TokenizerConfigRefuses, ::testing::ValuesIn(kRefusedConfigs),
                         [](const auto& test) { return test.param.name; });

TEST(TokenizerConfig, RolesMakeTokensSpecial) {
  const Tokenizer tokenizer =
      parse(tiny_tokenizer(),
            R"({"eos_token": {"content": "<t>"}, "pad_token": "abc", "additional_special_tokens": ["<s>"]})");
  EXPECT_EQ(tokenizer.eos_id(), 301);
  EXPECT_EQ(tokenizer.pad_id(), 257);
  EXPECT_EQ(tokenizer.special_tokens(), (std::vector<std::string>{"abc", "<s>", "<t>"}));
  // "abc" is searched in text now, before words are made.
  EXPECT_EQ(tokenizer.encode("xabc"), (std::vector<int32_t>{'x', 257}));
}

TEST(TokenizerConfig, ChatTemplates) {
  EXPECT_EQ(parse(tiny_tokenizer(), R"({"chat_template": "one"})").chat_template(), "one");
  EXPECT_EQ(parse(tiny_tokenizer(),
                  R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]})")
                .chat_template(),
            "y");
  EXPECT_EQ(parse(tiny_tokenizer(), R"({"chat_template": null})").chat_template(), "");
}

TEST(TokenizerFiles, ReadFromADirectory) {
  const testing::TempDir directory;
  const auto files = testing::file_system();
  EXPECT_FALSE(Tokenizer::exists(*files, directory.path()));
  const base::Error missing = testing::error_of([&] { Tokenizer::load(*files, directory.path()); });
  EXPECT_EQ(missing.code(), base::Code::kModel);
  EXPECT_EQ(missing.where(), directory.path() + "/tokenizer.json");
  directory.write("tokenizer.json", "\xef\xbb\xbf" + base::dump_json(tiny_tokenizer()));
  EXPECT_TRUE(Tokenizer::exists(*files, directory.path()));
  const Tokenizer plain = Tokenizer::load(*files, directory.path());
  EXPECT_EQ(plain.eos_token(), std::nullopt);
  directory.write("tokenizer_config.json", R"({"eos_token": "<s>", "chat_template": "from the config"})");
  directory.write("chat_template.jinja", "from the file");
  const Tokenizer full = Tokenizer::load(*files, directory.path());
  EXPECT_EQ(full.eos_id(), 300);
  EXPECT_EQ(full.chat_template(), "from the file");
  EXPECT_NE(full.fingerprint(), plain.fingerprint());
}

TEST(TokenizerFiles, RefusesWhatIsNoFile) {
  const testing::TempDir directory;
  const auto files = testing::file_system();
  ASSERT_EQ(::mkfifo((directory.path() + "/tokenizer.json").c_str(), 0600), 0);
  const base::Error error = testing::error_of([&] { Tokenizer::load(*files, directory.path()); });
  EXPECT_NE(error.message().find("not a regular file"), std::string::npos) << error.text();
}

}  // namespace
}  // namespace expertmesh::data
