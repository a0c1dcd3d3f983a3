// SPDX-License-Identifier: Apache-2.0
#include "config/suggest.h"

#include <gtest/gtest.h>

namespace expertmesh::config {
namespace {

const std::vector<std::string> kKnown = {"ep_size", "efsdp_size", "learning_rate",         "sft",
                                         "dpo",     "max_steps",  "flash-linear-attention"};

TEST(Suggest, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("eagre", "eager"), 1);  // a swap of neighbours is one mistake
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
}

TEST(Suggest, NearNames) {
  EXPECT_EQ(try_nearest("ep_sise", kKnown), "ep_size");
  EXPECT_EQ(try_nearest("learningrate", kKnown), "learning_rate");
  EXPECT_EQ(try_nearest("Learning-Rate", kKnown), "learning_rate");
  EXPECT_EQ(try_nearest("MAX_STEP", kKnown), "max_steps");
  EXPECT_EQ(try_nearest("stf", kKnown), "sft");
  EXPECT_EQ(try_nearest("flash_linear_attention", kKnown), "flash-linear-attention");
}

TEST(Suggest, NothingRatherThanAWrongName) {
  EXPECT_EQ(try_nearest("", kKnown), std::nullopt);
  EXPECT_EQ(try_nearest("per_device_train_batch_size", kKnown), std::nullopt);
  EXPECT_EQ(try_nearest("xft", kKnown), std::nullopt);
  EXPECT_EQ(try_nearest("rm", kKnown), std::nullopt);
  EXPECT_EQ(try_nearest(std::string(1 << 20, 'e'), kKnown), std::nullopt);
}

TEST(Suggest, Join) {
  EXPECT_EQ(join_names(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(join_names(std::vector<std::string_view>{}), "");
}

}  // namespace
}  // namespace expertmesh::config
