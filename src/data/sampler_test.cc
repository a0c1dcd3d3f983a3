// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <gmock/gmock.h>

#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// MAIN-04: which rows every rank reads, in upstream's order.
TEST(EpochOrder, IsUpstreams) {
  const base::Json inputs = testing::read_json(testing::source_path("tests/cases/values/epoch_order.json"));
  const base::Json all = testing::read_json(testing::source_path("tests/cases/values/expected.json"));
  const base::Json& expected = *all.find("epoch_order.json")->find("ok");
  for (const base::Json& item : *inputs.find("input")->try_array()) {
    const auto& numbers = *item.try_array();
    const auto number = [&](size_t i) { return *numbers[i].try_int64(); };
    const int ranks = static_cast<int>(number(1));
    const auto permutation = epoch_permutation(number(0), static_cast<uint64_t>(number(2)), number(3), true);
    base::Json::Array got;
    for (int rank = 0; rank < ranks; ++rank) {
      base::Json::Array order;
      for (const int64_t i : rank_order(permutation, ranks, rank)) order.emplace_back(i);
      got.emplace_back(order);
    }
    EXPECT_EQ(base::Json(got), *expected.find(base::dump_json(item, base::JsonStyle::kPython)));
  }
}

TEST(EpochOrder, WithoutShuffleIsTheFiles) {
  EXPECT_THAT(epoch_permutation(4, 42, 3, false), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rank_order(epoch_permutation(7, 0, 0, false), 3, 2), ElementsAre(2, 5));
}

TEST(EpochOrder, FewerSamplesThanRanks) {
  EXPECT_EQ(samples_per_rank(3, 4), 0);
  EXPECT_THAT(rank_order(epoch_permutation(3, 0, 0, true), 4, 0), SizeIs(0));
  EXPECT_EQ(samples_per_rank(8, 4), 2);
  EXPECT_EQ(samples_per_rank(11, 4), 2);
}

}  // namespace
}  // namespace expertmesh::data
