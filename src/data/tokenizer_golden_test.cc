// SPDX-License-Identifier: Apache-2.0
// The real vocabularies against tests/golden/tokenizer: ids of the reference library on texts that are hard. They are
// made by scripts/make_tokenizer.py and too large for the repository; without them the test says so and is skipped.
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/testing.h"
#include "data/tokenizer.h"
#include "data/tokenizer_testing.h"

namespace expertmesh::data {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string cache_directory() {
  if (const std::string own = variable("EXPERTMESH_CACHE"); !own.empty()) return own;
  const std::string home = variable("XDG_CACHE_HOME");
  return (home.empty() ? variable("HOME") + "/.cache" : home) + "/expertmesh";
}

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, IdsOfTheReference) {
  const std::string family = GetParam();
  const std::string directory = cache_directory() + "/tokenizers/" + family;
  const auto files = testing::file_system();
  if (!Tokenizer::exists(*files, directory)) {
    GTEST_SKIP() << "no tokenizer in " << directory << "; make it: python3 scripts/make_tokenizer.py --family "
                 << family << " --out " << directory;
  }
  const Tokenizer tokenizer = Tokenizer::load(*files, directory);
  const base::Json rows = testing::read_json(testing::source_path("tests/golden/tokenizer/" + family + ".json"));
  EXPECT_GT(rows.try_array()->size(), 150U);
  for (const base::Json& row : *rows.try_array()) {
    const std::string& text = *row.find("text")->try_string();
    const std::vector<int32_t> ids = testing::ids_of(*row.find("ids"));
    EXPECT_EQ(tokenizer.encode(text), ids) << *row.find("kind")->try_string() << ": " << text;
    EXPECT_EQ(tokenizer.decode(ids), *row.find("decoded")->try_string());
  }
  EXPECT_EQ(tokenizer.eos_token(), "<|im_end|>");
  EXPECT_EQ(tokenizer.pad_token(), "<|endoftext|>");
  EXPECT_EQ(tokenizer.id_limit(), tokenizer.vocab_size());
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden, ::testing::Values("qwen3", "qwen3_5"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace expertmesh::data
