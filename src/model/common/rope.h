// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: what config.json says of it, and its tables of cosines and sines.
// Kinds: default, linear, yarn, computed as transformers computes them; any other is an error that lists these.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/common/json_fields.h"

namespace expertmesh::model {

enum class RopeKind { kDefault, kLinear, kYarn };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t dim = 0;      // rotated elements of a head, even
  double factor = 1.0;  // linear, yarn
  // yarn
  int64_t original_length = 0;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;           // correction range to whole dims
  double attention_factor = 1.0;  // multiplies cosines and sines
};

// Reads `rope_scaling` and `rope_theta` (older files; the kind under `type` or `rope_type`) or `rope_parameters`.
// `partial`: the part of a head that is rotated where `partial_rotary_factor` is left out; nothing: whole heads only.
RopeConfig read_rope(const JsonFields& config, int64_t head_dim, int64_t max_positions,
                     std::optional<double> partial = {});

// `mrope_section` of the same object: how many of the angles belong to the time, height and width of a position. Text
// stands at the same place on all three, so any split gives the same angles; one that does not add up is an error.
std::vector<int64_t> read_mrope_section(const JsonFields& config, const RopeConfig& rope);

std::string_view rope_kind_name(RopeKind kind);

// Angles per position, fp32 [dim / 2].
at::Tensor inverse_frequencies(const RopeConfig& config);

// What Operators::rope takes beside the heads: tables with a row of angles for each position, and each token's row.
struct RotaryAngles {
  at::Tensor positions_T;
  at::Tensor cos_PR, sin_PR;  // fp32, with the attention factor
};

// Tables for the positions met so far; they grow by doubling. Threads: one rank.
class RotaryTables {
 public:
  // `mrope_section`: as read_mrope_section gives it; empty: a position has one axis.
  explicit RotaryTables(const RopeConfig& config, std::vector<int64_t> mrope_section = {});

  // `axis_positions_AT` [3, T]: time, height, width of each token; undefined: positions_T on each axis.
  RotaryAngles angles(const at::Tensor& positions_T, const at::Tensor& axis_positions_AT = {});

 private:
  // Makes the tables long enough for these positions.
  void cover(const at::Tensor& positions);

  RopeConfig config_;
  std::vector<int64_t> mrope_section_;
  at::Tensor frequencies_R_, cos_PR_, sin_PR_;
};

}  // namespace expertmesh::model
