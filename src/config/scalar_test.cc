// SPDX-License-Identifier: Apache-2.0
#include "config/scalar.h"

#include <gtest/gtest.h>

#include <cmath>

namespace expertmesh::config {
namespace {

Node plain(std::string text) {
  Node node;
  node.kind = Node::Kind::kScalar;
  node.text = std::move(text);
  return node;
}

Node quoted(std::string text) {
  Node node = plain(std::move(text));
  node.is_quoted = true;
  return node;
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const ValueError& error) {
    return error.message + "|" + error.hint;
  }
  return "accepted";
}

std::string integer_error(const Node& node, IntegerRange range = {}) {
  return message_of([&] { read_integer(node, range, Quotes::kText); });
}

TEST(Scalar, IntegersAreDecimal) {
  EXPECT_EQ(read_integer(plain("0"), {}, Quotes::kText), 0);
  EXPECT_EQ(read_integer(plain("-7"), {}, Quotes::kText), -7);
  EXPECT_EQ(read_integer(plain("+7"), {}, Quotes::kText), 7);
  EXPECT_EQ(read_integer(plain("1_000"), {}, Quotes::kText), 1000);
  EXPECT_EQ(read_integer(plain("9223372036854775807"), {}, Quotes::kText), INT64_MAX);
}

TEST(Scalar, IntegersThatAreNone) {
  for (const char* text :
       {"",     "-",   "+",   "+-1",  "12a",  "0x10", "0b1",  "0o7", "010", "00",   "-01",
        "12.5", "8.0", "1e3", ".nan", ".inf", "true", "1:30", "1_",  "_1",  "1__0", "9223372036854775808",
        "--1",  "1 2"}) {
    EXPECT_NE(integer_error(plain(text)), "accepted") << text;
  }
}

TEST(Scalar, IntegerMessages) {
  EXPECT_EQ(integer_error(plain("12.5"), {1, INT64_MAX}),
            "is 12.5, expected an integer of at least 1|Write it without a point or an exponent.");
  EXPECT_EQ(integer_error(plain("010"), {1, 100}),
            "is 010, expected an integer from 1 to 100|A leading zero is octal to some readers: write the number "
            "without it.");
  EXPECT_EQ(integer_error(plain("0x1F")), "is 0x1F, expected an integer|Write it in decimal.");
  EXPECT_EQ(integer_error(plain("5000000000"), {0, 4294967295}),
            "is 5000000000, expected an integer from 0 to 4294967295|");
  EXPECT_EQ(integer_error(quoted("7")), "is \"7\" (text), expected an integer|Remove the quotes.");
  Node list;
  list.kind = Node::Kind::kList;
  EXPECT_EQ(integer_error(list), "is a list, expected an integer|");
}

TEST(Scalar, QuotedNumbersCountInSections) {
  EXPECT_EQ(read_integer(quoted("2"), {}, Quotes::kNormalise), 2);
  EXPECT_DOUBLE_EQ(read_number(quoted("0.25"), {}, Quotes::kNormalise), 0.25);
  EXPECT_FALSE(read_bool(quoted("False"), Quotes::kNormalise));
  EXPECT_TRUE(read_bool(quoted("tRUE"), Quotes::kNormalise));
  // Upstream leaves signs, exponents and other words as text.
  EXPECT_NE(message_of([] { read_integer(quoted("-2"), {}, Quotes::kNormalise); }), "accepted");
  EXPECT_NE(message_of([] { read_number(quoted("1e-5"), {}, Quotes::kNormalise); }), "accepted");
  EXPECT_NE(message_of([] { read_bool(quoted("yes"), Quotes::kNormalise); }), "accepted");
}

TEST(Scalar, Numbers) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{{"1e-5", 1e-5},
                                                                               {"2E+3", 2000.0},
                                                                               {".5", 0.5},
                                                                               {"5.", 5.0},
                                                                               {"1", 1.0},
                                                                               {"-0", 0.0},
                                                                               {"1_0.5", 10.5},
                                                                               {"0.1", 0.1}}) {
    EXPECT_DOUBLE_EQ(read_number(plain(text), {}, Quotes::kText), value) << text;
  }
  for (const char* text : {"", ".", "e5", "1e", "1e+", "fast", ".nan", "nan", "inf", ".inf", "-.inf", "1e999", "1e-999",
                           "010", "00.5", "0x1p3", "1.2.3", "1,5", "true"}) {
    EXPECT_NE(message_of([&] { read_number(plain(text), {}, Quotes::kText); }), "accepted") << text;
  }
}

TEST(Scalar, NumberRanges) {
  const NumberRange above_zero{0.0, 1e300, true, true};
  EXPECT_TRUE(std::isinf(read_number(plain(".inf"), above_zero, Quotes::kText)));
  EXPECT_EQ(message_of([&] { read_number(plain("0"), above_zero, Quotes::kText); }),
            "is 0, expected a number above 0|");
  EXPECT_NE(message_of([&] { read_number(plain("-.inf"), above_zero, Quotes::kText); }), "accepted");
  EXPECT_EQ(message_of([] { read_number(plain("0.7"), {0.0, 0.5, false, false}, Quotes::kText); }),
            "is 0.7, expected a number from 0 to 0.5|");
}

TEST(Scalar, Booleans) {
  for (const char* text : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}) {
    EXPECT_TRUE(read_bool(plain(text), Quotes::kText)) << text;
  }
  for (const char* text : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}) {
    EXPECT_FALSE(read_bool(plain(text), Quotes::kText)) << text;
  }
  for (const char* text : {"y", "n", "Y", "N", "1", "0", "tRue", "truE", "t", "maybe", ""}) {
    EXPECT_NE(message_of([&] { read_bool(plain(text), Quotes::kText); }), "accepted") << text;
  }
  EXPECT_EQ(message_of([] { read_bool(quoted("true"), Quotes::kText); }),
            "is \"true\" (text), expected true or false|Remove the quotes.");
}

TEST(Scalar, TextThatLooksLikeAnotherTypeNeedsQuotes) {
  EXPECT_EQ(read_text(plain("out/run 1"), false), "out/run 1");
  EXPECT_EQ(read_text(quoted("2024"), false), "2024");
  EXPECT_EQ(message_of([] { read_text(plain("2024"), false); }), "is 2024, expected text|Put it in quotes: \"2024\".");
  EXPECT_NE(message_of([] { read_text(plain("no"), false); }), "accepted");
  EXPECT_EQ(read_text(plain("2024"), true), "2024");  // an override: the shell took the quotes
  EXPECT_NE(message_of([] { read_text(quoted(std::string("a\0b", 3)), false); }), "accepted");
}

TEST(Scalar, LongValuesAreCutInMessages) {
  const std::string message = integer_error(plain(std::string(5000, 'x')));
  EXPECT_LT(message.size(), 120U);
  EXPECT_NE(message.find("xxx..."), std::string::npos);
}

}  // namespace
}  // namespace expertmesh::config
