// SPDX-License-Identifier: Apache-2.0
#include "data/dataset_info.h"

#include <gmock/gmock.h>

#include "data/testing.h"

namespace expertmesh::data {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

class DatasetInfo : public ::testing::Test {
 protected:
  std::vector<DatasetEntry> load(std::string_view yaml) {
    return load_dataset_entries(*testing::file_system(), dir_.write("info.yaml", yaml));
  }
  base::Error error(std::string_view yaml) {
    return testing::error_of([&] { load(yaml); });
  }
  TempDir dir_;
  std::string rows_ = dir_.write("rows.jsonl", "{}");
};

TEST_F(DatasetInfo, AllKeys) {
  const auto entries =
      load(fmt::format("a:\n  path: {0}\n  source: local\n  split: train\n  converter: alpaca\n  size: 7\n  weight: "
                       "0.5\n  streaming: no\n"
                       "b:\n  path: {0}\n  converter: null\n",
                       rows_));
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].converter, "alpaca");
  EXPECT_EQ(entries[0].size, 7);
  EXPECT_EQ(entries[0].weight, 0.5);
  EXPECT_THAT(entries[0].where, HasSubstr("info.yaml:1"));
  EXPECT_EQ(entries[1].converter, "");
  EXPECT_EQ(entries[1].size, std::nullopt);
}

TEST_F(DatasetInfo, PlainFileIsOneEntry) {
  const auto entries = load_dataset_entries(*testing::file_system(), rows_);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].name, "default");
  EXPECT_EQ(entries[0].path, rows_);
}

TEST_F(DatasetInfo, HubIdsAreRefusedWithAHint) {
  EXPECT_THAT(error("a:\n  path: org/rows\n").text(), ::testing::AllOf(HasSubstr("org/rows"), HasSubstr("Download")));
  const base::Error plain =
      testing::error_of([&] { load_dataset_entries(*testing::file_system(), "org/no_such_data_set"); });
  EXPECT_EQ(plain.code(), base::Code::kData);
  EXPECT_THAT(plain.text(), HasSubstr("Download"));
}

TEST_F(DatasetInfo, EveryFaultIsADataError) {
  const std::string head = fmt::format("a:\n  path: {}\n", rows_);
  for (const std::string& yaml : {
           std::string("a: &x\n  path: y\n"),  // anchors
           head + "  path: twice\n",           // duplicate key
           std::string("- a\n"),
           std::string(""),           // no mapping
           std::string("a: text\n"),  // no entry
           head + "  size: 1.5\n",
           head + "  size: 010\n",  // no integers
           head + "  size: 0\n",
           head + "  weight: 0\n",  // out of range
           head + "  weight: .nan\n",
           head + "  weight: x\n",  // no numbers
           head + "  split: test\n",
           head + "  streaming: maybe\n",
           head + "  converter: \"\"\n",
           head + "  source: [local]\n",
       }) {
    const base::Error got = error(yaml);
    EXPECT_EQ(got.code(), base::Code::kData) << yaml;
    EXPECT_THAT(got.where(), HasSubstr("info.yaml")) << yaml;
  }
}

TEST_F(DatasetInfo, AllUnknownKeysAtOnce) {
  const base::Error got = error(fmt::format("a:\n  path: {}\n  colour: red\n  sizes: 3\n", rows_));
  EXPECT_THAT(got.text(), ::testing::AllOf(HasSubstr("colour"), HasSubstr("sizes, did you mean size")));
}

}  // namespace
}  // namespace expertmesh::data
