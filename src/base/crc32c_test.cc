// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace expertmesh::base {
namespace {

TEST(Crc32c, KnownValues) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(Crc32c, PartsAndBothForms) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31);
  const uint32_t whole = crc32c(text);
  for (const size_t cut : {0, 1, 7, 8, 9, 500, 1000}) {
    const std::string_view view = text;
    EXPECT_EQ(crc32c(view.substr(cut), crc32c(view.substr(0, cut))), whole);
  }
  EXPECT_EQ(detail::crc32c_table(std::as_bytes(std::span(text)), 0), whole);
}

TEST(Crc32c, EveryBitCounts) {
  std::string text(64, 'a');
  const uint32_t whole = crc32c(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(crc32c(text), whole);
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace expertmesh::base
