// SPDX-License-Identifier: Apache-2.0
// tests/cases/render/tokens.json (ids made by the reference library) and the rest of the interface.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <map>

#include "data/testing.h"
#include "data/tokenizer_spec.h"
#include "data/tokenizer_testing.h"

namespace expertmesh::data {
namespace {

using base::Json;
using Ids = std::vector<int32_t>;

const Tokenizer& small(const std::string& name) {
  static std::map<std::string, Tokenizer> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  const std::string path = testing::source_path("tests/cases/render/" + name);
  return loaded.emplace(name, Tokenizer::load(*testing::file_system(), path)).first->second;
}

Tokenizer tiny(const Json& json, std::string_view config = "") {
  return Tokenizer(parse_tokenizer_spec(base::dump_json(json), "tokenizer.json", config, "tokenizer_config.json"));
}

TEST(Tokenizer, IdsOfTheReference) {
  const Json rows = testing::read_json(testing::source_path("tests/cases/render/tokens.json"));
  size_t texts = 0, vectors = 0;
  for (const Json& row : *rows.try_array()) {
    const Tokenizer& tokenizer = small(*row.find("tokenizer")->try_string());
    if (const Json* text = row.find("text")) {
      ++texts;
      const Ids ids = testing::ids_of(*row.find("ids"));
      EXPECT_EQ(tokenizer.encode(*text->try_string()), ids) << *text->try_string();
      EXPECT_EQ(tokenizer.decode(ids), *row.find("decoded")->try_string());
    } else {  // a rendered dialogue: its text comes back from the ids, and the same ids from the text
      ++vectors;
      const Ids ids = testing::ids_of(*row.find("input_ids"));
      EXPECT_EQ(tokenizer.encode(tokenizer.decode(ids)), ids) << *row.find("vector")->try_string();
    }
  }
  EXPECT_GT(texts, 30U);
  EXPECT_GT(vectors, 40U);
}

TEST(Tokenizer, FactsOfTheSmallTokenizers) {
  const Json wanted = testing::read_json(testing::source_path("tests/cases/render/expected.json"));
  for (const char* name : {"tokenizer", "tokenizer_3_5"}) {
    const Tokenizer& tokenizer = small(name);
    const Json& facts = *wanted.find(name)->find("ok");
    EXPECT_EQ(tokenizer.vocab_size(), facts.find("vocab")->try_int64());
    EXPECT_EQ(tokenizer.id_limit(), facts.find("vocab")->try_int64());
    EXPECT_EQ(tokenizer.eos_token(), *facts.find("eos")->try_string());
    EXPECT_EQ(tokenizer.eos_id(), facts.find("eos_id")->try_int64());
    EXPECT_EQ(tokenizer.pad_token(), *facts.find("pad")->try_string());
    EXPECT_EQ(tokenizer.pad_id(), facts.find("pad_id")->try_int64());
    EXPECT_EQ(static_cast<int64_t>(tokenizer.special_tokens().size()), facts.find("special")->try_int64());
    EXPECT_EQ(tokenizer.special_tokens().front(), "<|endoftext|>");
    EXPECT_FALSE(tokenizer.is_special(tokenizer.token_to_id("<think>").value()));
    EXPECT_TRUE(tokenizer.is_special(tokenizer.token_to_id("<|im_start|>").value()));
    EXPECT_EQ(tokenizer.chat_template(), "");
  }
  EXPECT_NE(small("tokenizer").fingerprint(), small("tokenizer_3_5").fingerprint());
}

TEST(Tokenizer, TokensAndIds) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.id_limit(), 302);
  EXPECT_EQ(tokenizer.token_to_id("abc"), 257);
  EXPECT_EQ(tokenizer.token_to_id("<t>"), 301);
  EXPECT_EQ(tokenizer.token_to_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(32), "\xc4\xa0");
  EXPECT_EQ(tokenizer.token_bytes(32), " ");
  EXPECT_EQ(tokenizer.id_to_token(299), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(299), "");
  EXPECT_FALSE(tokenizer.is_special(299));
  EXPECT_EQ(tokenizer.eos_id(), std::nullopt);
}

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  EXPECT_EQ(tokenizer.encode("abcab<s>ab"), (Ids{257, 256, 300, 256}));
  EXPECT_EQ(tokenizer.decode(Ids{257, 300, 301}), "abc<s><t>");
  EXPECT_EQ(tokenizer.decode(Ids{257, 300, 301}, true), "abc<t>");
  EXPECT_EQ(tokenizer.decode(Ids{}), "");
  EXPECT_EQ(tokenizer.decode(Ids{0xe4, 0xbd}), "\xef\xbf\xbd");
  const base::Error error = testing::error_of([&] { tokenizer.decode(Ids{1, 299}); });
  EXPECT_EQ(error.code(), base::Code::kData);
  EXPECT_NE(error.message().find("id 299 at position 1"), std::string::npos) << error.text();
}

// Added tokens that are searched in the raw text go first, and a normalised one sees the normalised text.
TEST(Tokenizer, AddedTokensBeforeAndAfterNormalisation) {
  Json json = testing::tiny_tokenizer();
  Json::Array added = *json.find("added_tokens")->try_array();
  added.push_back(base::parse_json(R"({"id": 302, "content": "\u1ea1", "normalized": true, "special": false})"));
  added.push_back(base::parse_json(R"({"id": 303, "content": "a\u030a", "normalized": false, "special": false})"));
  json.set("added_tokens", std::move(added));
  const Tokenizer tokenizer = tiny(json);
  EXPECT_EQ(tokenizer.encode("a\xcc\xa3"), (Ids{302}));
  EXPECT_EQ(tokenizer.encode("a\xcc\x8a"), (Ids{303}));
  EXPECT_EQ(tokenizer.encode("\xc3\xa5"), (Ids{0xc3, 0xa5}));
  EXPECT_EQ(tokenizer.decode(Ids{302, 303}),
            "\xe1\xba\xa1"
            "a\xcc\x8a");
}

TEST(Tokenizer, RefusesWhatIsNoUtf8) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  const base::Error error = testing::error_of([&] {
    tokenizer.encode(
        "abc\xff"
        "d");
  });
  EXPECT_EQ(error.code(), base::Code::kData);
  EXPECT_NE(error.message().find("byte 0xff at offset 3"), std::string::npos) << error.text();
  EXPECT_THROW(tokenizer.encode("\xed\xa0\x80"), base::Error);  // a lone surrogate
}

TEST(Tokenizer, BatchEqualsOneByOne) {
  const Tokenizer& tokenizer = small("tokenizer");
  std::mt19937 dice(5);
  std::vector<std::string> texts;
  texts.reserve(500);
  for (int i = 0; i < 500; ++i)
    texts.push_back(testing::random_text(dice, {"the ", "user", "<think>", "\n"}, dice() % 30, 0x3000));
  std::vector<Ids> wanted;
  wanted.reserve(texts.size());
  for (const std::string& text : texts) wanted.push_back(tokenizer.encode(text));
  for (const int threads : {0, 1, 2, 5}) EXPECT_EQ(tokenizer.encode_batch(texts, threads), wanted) << threads;
  EXPECT_TRUE(tokenizer.encode_batch(std::vector<std::string>{}, 3).empty());
}

TEST(Tokenizer, BatchNamesTheBadText) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  std::vector<std::string> texts(40, "fine");
  texts[33] = "a\xff";
  const base::Error error = testing::error_of([&] { tokenizer.encode_batch(texts, 3); });
  EXPECT_EQ(error.where(), "text 34 of 40");
}

TEST(Tokenizer, DecodingEncodedTextGivesItBack) {
  Json json = testing::tiny_tokenizer();
  json.set("normalizer", nullptr);
  const Tokenizer tokenizer = tiny(json);
  std::mt19937 dice(6);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = testing::random_text(dice, {"ab", "abc", "<s>", "<t", " "}, dice() % 20, 0x110000);
    const Ids ids = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(ids), text);
    for (const int32_t id : ids) ASSERT_LT(id, tokenizer.id_limit());
  }
}

TEST(StreamDecoder, HandsOutWholeCharacters) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xe4), "");
  EXPECT_EQ(stream.push(0xbd), "");
  EXPECT_EQ(stream.push(0xa0), "\xe4\xbd\xa0");
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.push('b'),
            "\xef\xbf\xbd"
            "b");
  EXPECT_EQ(stream.push(0xe4), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, EqualsDecode) {
  const Tokenizer tokenizer = tiny(testing::tiny_tokenizer());
  std::mt19937 dice(8);
  for (int round = 0; round < 3000; ++round) {
    Ids ids;
    for (uint32_t i = dice() % 12; i > 0; --i)
      ids.push_back(static_cast<int32_t>(dice() % 4 == 0 ? 300 + dice() % 2 : 0x60 + dice() % 0xa0));
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    ASSERT_EQ(text + stream.finish(), tokenizer.decode(ids));
  }
}

// One endless word, white space or emoji: tenths of a second. A quadratic way would meet the time limit of the program
// of tests.
TEST(Tokenizer, EndlessTextsTakeLinearTime) {
  const Tokenizer& tokenizer = small("tokenizer");
  for (const char* unit : {"a", " ", "\n", "the", "\xf0\x9f\x91\xa9\xe2\x80\x8d", "\xcc\x81\xcc\xa3", "'", "<",
                           "<|im_en", "\xd7\xa9", "1"}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids).size(), text.size());
  }
}

}  // namespace
}  // namespace expertmesh::data
