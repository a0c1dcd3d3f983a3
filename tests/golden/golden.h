// SPDX-License-Identifier: Apache-2.0
// The golden set for tests: names, models made by the rule of golden_weights.py, and comparison with the summaries that
// Hugging Face's results were reduced to. README.md beside this file has the layout and the bounds.
// Threads: any. Errors: std::runtime_error; this is test code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace expertmesh::golden {

// Names of all goldens, sorted: the folders under tests/golden/qwen3_moe and tests/golden/qwen3_5_moe.
std::vector<std::string> golden_names();

// tests/golden/FAMILY/NAME
std::string golden_dir(const std::string& name);

// Writes config.json and model.safetensors of a golden into an existing folder.
void write_golden_model(const std::string& name, const std::string& out_dir);

// What a golden keeps of one tensor.
struct TensorSummary {
  double largest = 0;             // max |x|
  double norm = 0;                // 2-norm
  std::vector<double> sign_sums;  // sum of +-x with random signs
  std::vector<float> samples;     // elements at sample_positions()
};

// name of the tensor in transformers' own module tree (experts fused) -> summary
std::map<std::string, TensorSummary> read_summaries(const std::string& path);

// The elements kept of a tensor of `count` elements: all where they are few.
std::vector<int64_t> sample_positions(const std::string& name, int64_t count, size_t num_samples);

// How close tensors must be to their summaries. `typical` and `worst` are fractions of the tensor's largest value; at
// least `typical_share` of the samples must be within `typical`, all within `worst`.
struct Bound {
  double typical = 5e-6;
  double typical_share = 1.0;
  double worst = 5e-6;
};
inline constexpr Bound kStrict{};
inline constexpr Bound kAdamW{2e-4, 0.995, 5e-3};

// kStrict, but wider for what a gated delta net's decays depend on: transformers takes them from differences of fp32
// sums over a chunk, our kernel from products, and the digits that differences lose show in these gradients.
Bound gradient_bound(const std::string& name);

// Counts samples over several tensors, where the share is one of all weights: a few elements decide it in a small one.
struct Tally {
  size_t num_typical = 0, num_samples = 0;
  double share() const { return static_cast<double>(num_typical) / static_cast<double>(num_samples); }
};

// Nothing where `values` (row major, the whole tensor) agrees with the summary; else what differs, with both values.
// With a tally the share is the caller's to judge.
std::optional<std::string> find_difference(const std::string& name, std::span<const float> values,
                                           const TensorSummary& expected, const Bound& bound = kStrict,
                                           Tally* tally = nullptr);

}  // namespace expertmesh::golden
