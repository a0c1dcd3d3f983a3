// SPDX-License-Identifier: Apache-2.0
#include "data/content_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace expertmesh::data {
namespace {

// Cache keys are kept between versions: the values must not change.
TEST(ContentHash, IsStable) {
  EXPECT_EQ(content_hash("").hex(), "6dec1b5ce56a8449997a7b5d99e1f8b9");
  EXPECT_EQ(content_hash("expertmesh").hex(), "f2c814b71810907cb8317a2612282c4b");
}

TEST(ContentHash, EveryBitAndLengthCounts) {
  std::set<std::string> seen;
  for (size_t length = 0; length < 200; ++length) {
    EXPECT_TRUE(seen.insert(content_hash(std::string(length, '\0')).hex()).second) << length;
  }
  const std::string text(130, 'x');
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(seen.insert(content_hash(other).hex()).second) << bit;
  }
}

TEST(ContentHash, OrderCounts) {
  const std::string a(64, 'a'), b(64, 'b');
  EXPECT_NE(content_hash(a + b), content_hash(b + a));
  EXPECT_NE(content_hash(std::string(16, 'a') + std::string(16, 'b')),
            content_hash(std::string(16, 'b') + std::string(16, 'a')));
}

}  // namespace
}  // namespace expertmesh::data
