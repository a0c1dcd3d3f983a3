// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_added.h"

#include <gtest/gtest.h>

namespace expertmesh::data {
namespace {

std::string found(const AddedTokenSearch& search, std::string_view text) {
  std::string out;
  size_t from = 0;
  while (const auto match = search.find(text, from)) {
    out += std::to_string(match->id) + "[" + std::string(text.substr(match->first, match->last - match->first)) + "]";
    from = match->last;
  }
  return out;
}

TEST(AddedTokenSearch, TheLongestAtTheFirstPlace) {
  const AddedTokenSearch search({{.id = 1, .content = "<a"},
                                 {.id = 2, .content = "<a>"},
                                 {.id = 3, .content = "<a><b>x"},
                                 {.id = 4, .content = "b"}});
  EXPECT_EQ(found(search, "<a><b>y<a<a><b>xx"), "2[<a>]4[b]1[<a]3[<a><b>x]");
  EXPECT_EQ(found(search, ""), "");
  EXPECT_EQ(found(search, "<"), "");
}

TEST(AddedTokenSearch, OneFirstByte) {
  const AddedTokenSearch search({{.id = 1, .content = "<|x|>"}, {.id = 2, .content = "<|xy|>"}});
  EXPECT_EQ(found(search, "a<<|x|><|xy|><|z|>"), "1[<|x|>]2[<|xy|>]");
}

TEST(AddedTokenSearch, WhiteSpaceAround) {
  const AddedTokenSearch search({{.id = 1, .content = "L", .lstrip = true},
                                 {.id = 2, .content = "R", .rstrip = true},
                                 {.id = 3, .content = "B", .lstrip = true, .rstrip = true}});
  EXPECT_EQ(found(search, "x \xe3\x80\x80L y"), "1[ \xe3\x80\x80L]");
  EXPECT_EQ(found(search, "R \n  L"), "2[R \n  ]1[L]");
  EXPECT_EQ(found(search, " B B "), "3[ B ]3[B ]");
  EXPECT_EQ(found(search, "  L"), "1[  L]");
}

TEST(AddedTokenSearch, NoTokensFindNothing) {
  EXPECT_TRUE(AddedTokenSearch().empty());
  EXPECT_EQ(AddedTokenSearch().find("abc", 0), std::nullopt);
}

}  // namespace
}  // namespace expertmesh::data
