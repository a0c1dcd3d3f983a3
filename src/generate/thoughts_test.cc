// SPDX-License-Identifier: Apache-2.0
#include "generate/thoughts.h"

#include <gtest/gtest.h>

namespace expertmesh::generate {
namespace {

using Pieces = std::vector<ThoughtSplitter::Piece>;

// The pieces of a text that comes `width` bytes at a time, neighbours of one kind joined.
Pieces split(std::string_view text, bool starts_in_thought, size_t width) {
  ThoughtSplitter splitter(starts_in_thought);
  Pieces joined;
  const auto add = [&](const Pieces& pieces) {
    for (const auto& piece : pieces) {
      if (!joined.empty() && joined.back().is_thought == piece.is_thought) {
        joined.back().text += piece.text;
      } else {
        joined.push_back(piece);
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += width) add(splitter.push(text.substr(at, width)));
  add(splitter.finish());
  return joined;
}

TEST(ThoughtSplitter, FindsThoughtsHoweverTheTextComes) {
  for (const size_t width : {1U, 2U, 3U, 7U, 8U, 100U}) {
    EXPECT_EQ(split("<think>\na\n</think>\n\nb", false, width),
              (Pieces{{"<think>\na\n</think>", true}, {"\n\nb", false}}));
    EXPECT_EQ(split("a</think>b", true, width), (Pieces{{"a</think>", true}, {"b", false}}));
    EXPECT_EQ(split("a<think>b</think>c<think>d", false, width),
              (Pieces{{"a", false}, {"<think>b</think>", true}, {"c", false}, {"<think>d", true}}));
    EXPECT_EQ(split("a < b <thin> </think> c <thi", false, width), (Pieces{{"a < b <thin> </think> c <thi", false}}));
    EXPECT_EQ(split("</thin</think>x", true, width), (Pieces{{"</thin</think>", true}, {"x", false}}));
    EXPECT_EQ(split("", true, width), Pieces{});
  }
}

TEST(ThoughtSplitter, TextIsHandedOutAsSoonAsItCannotBeATag) {
  ThoughtSplitter splitter(false);
  EXPECT_EQ(splitter.push("ab<"), (Pieces{{"ab", false}}));
  EXPECT_EQ(splitter.push("t"), Pieces{});
  EXPECT_EQ(splitter.push("x"), (Pieces{{"<tx", false}}));
  EXPECT_FALSE(splitter.is_in_thought());
  splitter.push("<think>");
  EXPECT_TRUE(splitter.is_in_thought());
}

}  // namespace
}  // namespace expertmesh::generate
