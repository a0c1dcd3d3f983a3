// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/json_events.h"

namespace expertmesh::base {
namespace {

using ::testing::HasSubstr;

JsonError error_of(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits);
  } catch (const JsonError& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 80);
  return {};
}

TEST(Json, KeepsIntegersExact) {
  const Json value = parse_json("[0, -0, -9223372036854775808, 9223372036854775807, 18446744073709551615, 1.0, 1e2]");
  const auto& list = *value.try_array();
  EXPECT_EQ(list[0], Json(0));
  EXPECT_EQ(list[1], Json(0));
  EXPECT_EQ(list[2].try_int64(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(list[3].try_int64(), std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(list[4].try_int64());
  EXPECT_EQ(std::get<uint64_t>(list[4].value()), std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(list[5].is_integer());
  EXPECT_FALSE(list[5].try_int64());
  EXPECT_EQ(list[6].try_double(), 100.0);
}

TEST(Json, WritesHugeIntegersBackUnchanged) {
  const std::string text = "[18446744073709551616,-9223372036854775809,123456789012345678901234567890]";
  const Json value = parse_json(text);
  EXPECT_EQ(dump_json(value), text);
  EXPECT_TRUE((*value.try_array())[0].is_integer());
  EXPECT_FALSE((*value.try_array())[0].try_int64());
  EXPECT_EQ((*value.try_array())[0].try_double(), 18446744073709551616.0);
}

TEST(Json, KeepsOrderAndFinds) {
  const Json value = parse_json(R"( {"b": 1, "a": {"c": [true, null, "x"]}} )");
  EXPECT_EQ(dump_json(value), R"({"b":1,"a":{"c":[true,null,"x"]}})");
  ASSERT_NE(value.find("a"), nullptr);
  EXPECT_EQ(value.find("a")->find("zz"), nullptr);
  EXPECT_EQ(value.find("b")->find("a"), nullptr);  // no object
}

TEST(Json, SetReplacesOrAppends) {
  Json value = Json::Object{{"a", 1}};
  value.set("a", 2);
  value.set("b", "x");
  EXPECT_EQ(dump_json(value), R"({"a":2,"b":"x"})");
}

TEST(Json, DuplicateKeyIsAnErrorWithItsPlace) {
  const JsonError error = error_of("{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3}");
  EXPECT_EQ(error.message, "duplicate key \"a\"");
  EXPECT_EQ(error.line, 3);
  EXPECT_EQ(error.column, 2);
}

TEST(Json, DuplicateKeyInALargeObject) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_NO_THROW(parse_json(text + "\"k1000\":0}"));
  for (const int i : {0, 15, 16, 17, 500, 999}) {
    EXPECT_THAT(error_of(text + "\"k" + std::to_string(i) + "\":0}").message, HasSubstr("duplicate key"));
  }
}

TEST(Json, EscapesAndSurrogatePairs) {
  EXPECT_EQ(*parse_json(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00\u0000")").try_string(),
            std::string("\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0", 19));
}

struct BadText {
  std::string text;
  std::string message;
};

class JsonRefuses : public ::testing::TestWithParam<BadText> {};

TEST_P(JsonRefuses, WithAReason) {
  const JsonError error = error_of(GetParam().text);
  EXPECT_THAT(error.message, HasSubstr(GetParam().message));
  EXPECT_LE(error.offset, GetParam().text.size());
}

INSTANTIATE_TEST_SUITE_P(
    Texts, JsonRefuses,
    ::testing::Values(
        BadText{"", "end of the JSON text"}, BadText{"  ", "end of the JSON text"},
        BadText{"{\"a\": ", "end of the JSON text"}, BadText{"[1, 2", "end of the JSON text"},
        BadText{"{} x", "after the end"}, BadText{"{}{}", "after the end"}, BadText{"[1,]", "comma before"},
        BadText{"{\"a\":1,}", "comma before"}, BadText{"[,1]", "a value was expected"}, BadText{"[1 2]", "a comma"},
        BadText{"{a: 1}", "double quotes"}, BadText{"{'a': 1}", "'''"}, BadText{"{1: 1}", "double quotes"},
        BadText{"{\"a\" 1}", "colon"}, BadText{"[1}", "a comma or ']'"}, BadText{"01", "leading zero"},
        BadText{"-", "digit"}, BadText{"1.", "digit"}, BadText{".5", "a value"}, BadText{"1e", "digit"},
        BadText{"+1", "a value"}, BadText{"0x10", "after the end"}, BadText{"1e999", "too large"},
        BadText{"NaN", "NaN"}, BadText{"-Infinity", "Infinity"}, BadText{"tru", "a value"}, BadText{"nul", "a value"},
        BadText{"\"abc", "unterminated"}, BadText{"\"abc\\", "unterminated"}, BadText{"\"\\q\"", "unknown escape"},
        BadText{"\"\\u12\"", "\\u escape"}, BadText{"\"\\u+123\"", "\\u escape"},
        BadText{"\"\\ud800\"", "lone surrogate"}, BadText{"\"\\udc00\"", "lone surrogate"},
        BadText{"\"\\ud800\\u0041\"", "lone surrogate"}, BadText{"\"a\tb\"", "control character 0x09"},
        BadText{std::string("\"a\0b\"", 5), "control character 0x00"},
        BadText{std::string("[1]\0", 4), "after the end"}, BadText{"\"\xff\"", "UTF-8"},
        BadText{"\"\xc0\x80\"", "UTF-8"}, BadText{"\"\xed\xa0\x80\"", "UTF-8"}, BadText{"[] // x", "after the end"},
        BadText{"\xef\xbb\xbf[]", "a value was expected"}));

TEST(Json, EveryPrefixIsRefused) {
  const std::string text = R"({"a": [1, -2.5e+3, "x\u00e9\n", true, false, null, {}, []], "b": {"c": "d"}})";
  ASSERT_NO_THROW(parse_json(text));
  for (size_t length = 0; length < text.size(); ++length) error_of(text.substr(0, length));
}

TEST(Json, DepthIsLimitedWithoutRecursion) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(error_of(deep).message, HasSubstr("nested deeper than 256"));
  EXPECT_EQ(error_of(deep).offset, 256U);
  EXPECT_NO_THROW(parse_json(std::string(256, '[') + std::string(256, ']')));
  EXPECT_THAT(error_of("[[1]]", {.max_depth = 1}).message, HasSubstr("nested"));
}

TEST(Json, NodesAreLimited) {
  EXPECT_NO_THROW(parse_json("[1,2,3]", {.max_nodes = 4}));
  EXPECT_THAT(error_of("[1,2,3]", {.max_nodes = 3}).message, HasSubstr("more than 3"));
}

TEST(Json, EventsOfDeepTextNeedNoStack) {
  struct Counter : JsonEvents {
    long opened = 0, closed = 0;
    void on_scalar(Json) override {}
    void on_key(std::string_view) override {}
    void on_begin(bool) override { ++opened; }
    void on_end(bool) override { ++closed; }
  } counter;
  constexpr int kDepth = 2'000'000;
  parse_json_events(std::string(kDepth, '[') + std::string(kDepth, ']'), {.max_depth = kDepth}, counter);
  EXPECT_EQ(counter.opened, kDepth);
  EXPECT_EQ(counter.closed, kDepth);
}

TEST(Json, FloatsAsPythonWritesThem) {
  const std::pair<double, std::string> kCases[] = {{0.0, "0.0"},
                                                   {-0.0, "-0.0"},
                                                   {1.0, "1.0"},
                                                   {0.1, "0.1"},
                                                   {100.0, "100.0"},
                                                   {1e15, "1000000000000000.0"},
                                                   {1e16, "1e+16"},
                                                   {1.5e16, "1.5e+16"},
                                                   {0.0001, "0.0001"},
                                                   {0.00001, "1e-05"},
                                                   {1.25e-7, "1.25e-07"},
                                                   {1e100, "1e+100"},
                                                   {123456.789, "123456.789"},
                                                   {9007199254740993.0, "9007199254740992.0"},
                                                   {5e-324, "5e-324"},
                                                   {1e22, "1e+22"},
                                                   {-2.5, "-2.5"}};
  for (const auto& [value, text] : kCases) EXPECT_EQ(python_float_repr(value), text);
}

TEST(Json, Styles) {
  const Json value = parse_json("{\"a\": [1, 2.5, {}], \"\\u00e9\\u0001\": [], \"z\": {\"k\": null}}");
  EXPECT_EQ(dump_json(value, JsonStyle::kCompact), "{\"a\":[1,2.5,{}],\"\xc3\xa9\\u0001\":[],\"z\":{\"k\":null}}");
  EXPECT_EQ(dump_json(value, JsonStyle::kPython),
            "{\"a\": [1, 2.5, {}], \"\xc3\xa9\\u0001\": [], \"z\": {\"k\": null}}");
  EXPECT_EQ(
      dump_json(value, JsonStyle::kPretty),
      "{\n  \"a\": [\n    1,\n    2.5,\n    {}\n  ],\n  \"\xc3\xa9\\u0001\": [],\n  \"z\": {\n    \"k\": null\n  }\n}");
}

TEST(Json, NumbersThatAreNotFinite) {
  const Json value = Json::Array{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()};
  EXPECT_EQ(dump_json(value), "[null,null,null]");
  EXPECT_EQ(dump_json(value, JsonStyle::kPython), "[NaN, Infinity, -Infinity]");
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_FALSE(find_invalid_utf8(""));
  EXPECT_FALSE(
      find_invalid_utf8("plain text longer than a word \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"));
  const std::pair<std::string, size_t> kBad[] = {
      {"abcdefghijk\x80", 11}, {"\xc1\xbf", 0},         {"a\xe0\x9f\xbf", 1},
      {"\xed\xbf\xbf", 0},     {"\xf0\x8f\xbf\xbf", 0}, {"\xf4\x90\x80\x80", 0},
      {"\xf5\x80\x80\x80", 0}, {"ab\xe2\x82", 2},       {"\xc3", 0},
      {"\xc3\xa9\xc3\x28", 2}};
  for (const auto& [text, offset] : kBad) EXPECT_EQ(find_invalid_utf8(text), offset) << testing::PrintToString(text);
}

}  // namespace
}  // namespace expertmesh::base
