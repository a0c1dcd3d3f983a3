// SPDX-License-Identifier: Apache-2.0
// The golden set itself: the C++ rule makes the bits that Python made, and the comparison notices what it must.
#include "golden.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"

namespace expertmesh::golden {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The checksum of golden_weights.py over the data part of a safetensors file.
std::string data_checksum(const std::string& file) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  uint64_t sum = 0;
  uint64_t index = 0;
  for (size_t at = 8 + header_bytes; at < file.size(); at += 4, ++index) {
    uint32_t word = 0;
    std::memcpy(&word, file.data() + at, sizeof(word));
    sum += word * (2 * index + 1);
  }
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(sum));
  return hex;
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "expertmesh_golden_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(GoldenSet, HasEveryVariant) {
  const std::vector<std::string> expected = {"attention_bias", "dense_first",      "fused_experts", "no_norm_topk",
                                             "odd_sizes",      "published_config", "qwen3_5_odd",   "qwen3_5_text",
                                             "qwen3_5_whole",  "rope_linear",      "rope_yarn",     "rope_yarn_factor",
                                             "small_s0",       "small_s1",         "sparse_step",   "tied",
                                             "tiny_s0",        "tiny_s1",          "tiny_s2"};
  EXPECT_EQ(golden_names(), expected);
}

TEST(GoldenSet, WeightsAreTheBitsThatPythonMade) {
  for (const std::string& name : golden_names()) {
    const TempDir dir;
    write_golden_model(name, dir.path());
    const base::Json plan = base::parse_json(slurp(golden_dir(name) + "/weights.json"));
    EXPECT_EQ(data_checksum(slurp(dir.path() + "/model.safetensors")), *plan.find("checksum")->try_string()) << name;
  }
}

TEST(GoldenSet, StaysSmall) {
  uintmax_t bytes = 0;
  for (const std::string& name : golden_names()) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(golden_dir(name))) {
      if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
    }
  }
  EXPECT_LT(bytes, 1'200'000U);
  EXPECT_GT(bytes, 100'000U);
}

// A summary of values that the test itself knows, as make_goldens.py would write it.
TensorSummary summary_of(const std::string& name, const std::vector<float>& values, size_t num_samples) {
  TensorSummary summary;
  for (const float x : values) summary.largest = std::max(summary.largest, std::abs(static_cast<double>(x)));
  for (const int64_t at : sample_positions(name, static_cast<int64_t>(values.size()), num_samples)) {
    summary.samples.push_back(values[static_cast<size_t>(at)]);
  }
  return summary;
}

TEST(FindDifference, AcceptsEqualAndNearValues) {
  std::vector<float> values(96, 0.5F);
  values[3] = -1.0F;
  const TensorSummary summary = summary_of("t", values, 96);
  EXPECT_EQ(find_difference("t", values, summary), std::nullopt);
  values[3] += 4e-6F;
  EXPECT_EQ(find_difference("t", values, summary), std::nullopt);
}

TEST(FindDifference, NamesAWrongElementAndNaN) {
  std::vector<float> values(96, 0.5F);
  const TensorSummary summary = summary_of("t", values, 96);
  values[7] = 0.5001F;
  EXPECT_NE(find_difference("t", values, summary).value_or("").find("t[7]"), std::string::npos);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(find_difference("t", values, summary), std::nullopt);
}

TEST(FindDifference, SumsCatchAnElementThatWasNotKept) {
  const std::string name = "model.embed_tokens.weight";
  const auto summaries = read_summaries(golden_dir("tiny_s0") + "/sgd/final.safetensors");
  ASSERT_TRUE(summaries.contains(name));
  // Sums of zero and one wrong element that no sample looks at.
  std::vector<float> values(4096, 0.0F);
  TensorSummary zero;
  zero.largest = 1.0;
  zero.samples.assign(96, 0.0F);
  zero.sign_sums.assign(4, 0.0);
  EXPECT_EQ(find_difference(name, values, zero), std::nullopt);
  const std::vector<int64_t> kept = sample_positions(name, 4096, 96);
  size_t unkept = 0;
  while (std::find(kept.begin(), kept.end(), static_cast<int64_t>(unkept)) != kept.end()) ++unkept;
  values[unkept] = 0.01F;
  EXPECT_NE(find_difference(name, values, zero).value_or("").find("signed sum"), std::string::npos);
}

TEST(FindDifference, AdamBoundAllowsFewFarOnes) {
  std::vector<float> values(96, 1.0F);
  const TensorSummary summary = summary_of("t", values, 96);
  values[5] = 1.001F;
  EXPECT_NE(find_difference("t", values, summary, Bound{2e-4, 1.0, 5e-3}), std::nullopt);
  EXPECT_EQ(find_difference("t", values, summary, Bound{2e-4, 0.98, 5e-3}), std::nullopt);
  Tally tally;
  EXPECT_EQ(find_difference("t", values, summary, Bound{2e-4, 1.0, 5e-3}, &tally), std::nullopt);
  EXPECT_EQ(tally.num_samples - tally.num_typical, 1U);
  values[5] = 1.01F;
  EXPECT_NE(find_difference("t", values, summary, Bound{2e-4, 0.98, 5e-3}), std::nullopt);
}

}  // namespace
}  // namespace expertmesh::golden
