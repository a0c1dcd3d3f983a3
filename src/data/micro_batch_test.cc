// SPDX-License-Identifier: Apache-2.0
#include "data/micro_batch.h"

#include <gmock/gmock.h>

#include <numeric>

#include "data/testing.h"

namespace expertmesh::data {
namespace {

using base::Json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Collate, PadsOnTheRight) {
  const MicroBatch batch = collate({{{7, 8, 9}, {-100, 8, 9}, {0, 1, 0.5F}}, {{5}, {5}, {1}}});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.width, 3);
  EXPECT_THAT(batch.input_ids, ElementsAre(7, 8, 9, 5, 0, 0));
  EXPECT_THAT(batch.labels, ElementsAre(-100, 8, 9, 5, -100, -100));
  EXPECT_THAT(batch.loss_weights, ElementsAre(0, 1, 0.5F, 1, 0, 0));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 3));
  EXPECT_THAT(batch.lengths, ElementsAre(3, 1));
  EXPECT_EQ(batch.tokens, 4);
  EXPECT_EQ(batch.targets, 2);  // the label at position 0 of the second row is no target
  EXPECT_EQ(batch.target_weight, 1.5);
  EXPECT_FALSE(batch.unit_weights);
}

// Documents of 0, 1, 2 and 3 tokens, every label given.
std::vector<Sample> short_samples() {
  return {{{}, {}, {}}, {{5}, {5}, {1}}, {{1, 2}, {1, 2}, {1, 1}}, {{}, {}, {}}, {{7, 8, 9}, {7, 8, 9}, {1, 1, 0.5F}}};
}

TEST(Pack, LaysDocumentsEndToEnd) {
  const MicroBatch batch = pack(short_samples());
  EXPECT_EQ(batch.rows, 1);
  EXPECT_EQ(batch.width, 6);
  EXPECT_THAT(batch.input_ids, ElementsAre(5, 1, 2, 7, 8, 9));
  // "First" is the sample at index 0, as upstream has it, even where that one is empty.
  EXPECT_THAT(batch.labels, ElementsAre(-100, -100, 2, -100, 8, 9));
  EXPECT_THAT(batch.loss_weights, ElementsAre(0, 0, 1, 0, 1, 0.5F));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 0, 1, 3, 3));
  EXPECT_THAT(batch.lengths, ElementsAre(0, 1, 2, 0, 3));
}

TEST(Pack, CountsAsPadded) {
  const MicroBatch padded = collate(short_samples()), packed = pack(short_samples());
  EXPECT_EQ(packed.tokens, padded.tokens);
  EXPECT_EQ(packed.targets, padded.targets);
  EXPECT_EQ(packed.target_weight, padded.target_weight);
  EXPECT_EQ(packed.unit_weights, padded.unit_weights);
  EXPECT_EQ(packed.targets, 3);
  EXPECT_EQ(packed.target_weight, 2.5);
}

TEST(Pack, OfNothingIsEmpty) {
  for (const auto& samples : {std::vector<Sample>{}, std::vector<Sample>{{{}, {}, {}}, {{}, {}, {}}}}) {
    const MicroBatch batch = pack(samples);
    EXPECT_EQ(batch.rows, 1);
    EXPECT_EQ(batch.width, 0);
    EXPECT_THAT(batch.input_ids, IsEmpty());
    EXPECT_EQ(batch.targets, 0);
  }
}

// CP-16: upstream's values for a packed micro batch.
TEST(Pack, GivesUpstreamsValues) {
  const Json input = testing::read_json(testing::source_path("tests/cases/values/batches.json"));
  const Json all = testing::read_json(testing::source_path("tests/cases/values/expected.json"));
  const Json& expected = *all.find("batches.json")->find("ok")->find("padding_free");
  std::vector<Sample> samples;
  for (const Json& row : *input.find("input")->find("padding_free")->try_array()) {
    const auto length = std::min<int64_t>(*(*row.try_array())[1].try_int64(), 3);  // cutoff_len
    Sample sample;
    sample.input_ids.resize(static_cast<size_t>(length));
    std::iota(sample.input_ids.begin(), sample.input_ids.end(),
              static_cast<int32_t>(*(*row.try_array())[0].try_int64()));
    sample.labels = sample.input_ids;
    sample.loss_weights.assign(sample.labels.size(), 1.0F);
    samples.push_back(std::move(sample));
  }
  const MicroBatch batch = pack(samples);
  const auto row_of = [&](std::string_view key) {
    std::vector<double> values;
    for (const Json& value : *(*expected.find(key)->try_array())[0].try_array()) values.push_back(*value.try_double());
    return values;
  };
  const auto as_double = [](const auto& values) { return std::vector<double>(values.begin(), values.end()); };
  EXPECT_EQ(as_double(batch.input_ids), row_of("input_ids"));
  EXPECT_EQ(as_double(batch.labels), row_of("labels"));
  EXPECT_EQ(as_double(batch.loss_weights), row_of("loss_weights"));
}

}  // namespace
}  // namespace expertmesh::data
