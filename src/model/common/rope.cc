// SPDX-License-Identifier: Apache-2.0
#include "model/common/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/mrope.h"

namespace expertmesh::model {
namespace {

using base::Json;

constexpr IntRange kLengths = {1, int64_t{1} << 30};

// How much longer contexts sharpen attention (yarn).
double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// The object that describes the scaling, and its key; none: plain rotary embedding.
struct Source {
  const Json* object = nullptr;
  std::string key;
};

Source find_source(const JsonFields& config) {
  const auto filled = [&](std::string_view key) -> const Json* {
    const Json* value = config.find(key);
    if (value == nullptr) return nullptr;
    return value->is_object() && value->try_object()->empty() ? nullptr : value;
  };
  const Json* older = filled("rope_scaling");
  const Json* newer = filled("rope_parameters");
  if (older != nullptr && newer != nullptr && *older != *newer) {
    throw config.error("rope_scaling", fmt::format("rope_parameters is {}", brief(*newer)))
        .hint("Keep one of the two.");
  }
  if (older != nullptr) return {older, "rope_scaling"};
  return {newer, "rope_parameters"};
}

RopeKind read_kind(const JsonFields& rope) {
  const std::string older = rope.text("type", ""), newer = rope.text("rope_type", "");
  if (!older.empty() && !newer.empty() && older != newer) {
    throw rope.error("rope_type", fmt::format("type is \"{}\"", older)).hint("Keep one of the two.");
  }
  const std::string name = !newer.empty() ? newer : !older.empty() ? older : "default";
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "yarn") return RopeKind::kYarn;
  throw rope.error(newer.empty() ? "type" : "rope_type",
                   "the kinds (rope_type) that this build computes are default, linear and yarn");
}

void read_yarn(const JsonFields& config, const JsonFields& rope, int64_t max_positions, RopeConfig& result) {
  result.original_length = rope.integer("original_max_position_embeddings", max_positions, kLengths);
  // A value outside the object is the pretrained length, and goes before.
  result.original_length = config.integer("original_max_position_embeddings", result.original_length, kLengths);
  result.factor =
      rope.positive("factor", static_cast<double>(max_positions) / static_cast<double>(result.original_length));
  // 0 means left out.
  if (const double fast = rope.number("beta_fast", 0.0); fast != 0.0) result.beta_fast = fast;
  if (const double slow = rope.number("beta_slow", 0.0); slow != 0.0) result.beta_slow = slow;
  if (result.beta_fast <= 0.0) throw rope.error("beta_fast", "it must be above 0");
  if (result.beta_slow <= 0.0) throw rope.error("beta_slow", "it must be above 0");
  result.truncate = rope.boolean("truncate", true);
  const double mscale = rope.number("mscale", 0.0), mscale_all_dim = rope.number("mscale_all_dim", 0.0);
  double attention_factor = yarn_mscale(result.factor, 1.0);
  if (mscale != 0.0 && mscale_all_dim != 0.0) {
    attention_factor = yarn_mscale(result.factor, mscale) / yarn_mscale(result.factor, mscale_all_dim);
  }
  result.attention_factor = rope.positive("attention_factor", attention_factor);
}

// Pairs of dims below `low` keep their frequency, those above `high` are slowed down by the factor, between them it is
// mixed: a ramp over the pairs.
struct Ramp {
  double low, high;
};

Ramp yarn_ramp(const RopeConfig& config) {
  const auto dim_of = [&](double turns) {
    return static_cast<double>(config.dim) *
           std::log(static_cast<double>(config.original_length) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  Ramp ramp = {dim_of(config.beta_fast), dim_of(config.beta_slow)};
  if (config.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, static_cast<double>(config.dim - 1))};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

// Elements of a head that are rotated, as transformers cuts them.
int64_t read_rotary_dim(const JsonFields& fields, int64_t head_dim, std::optional<double> partial) {
  const double factor = fields.number("partial_rotary_factor", partial.value_or(1.0));
  if (!partial && factor != 1.0) throw fields.error("partial_rotary_factor", "this model rotates whole heads");
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (!(factor > 0.0 && factor <= 1.0) || dim < 2 || dim % 2 != 0) {
    throw fields.error("partial_rotary_factor",
                       fmt::format("an even number of the {} elements of a head has to be rotated", head_dim));
  }
  return dim;
}

}  // namespace

std::string_view rope_kind_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::kDefault:
      return "default";
    case RopeKind::kLinear:
      return "linear";
    case RopeKind::kYarn:
      return "yarn";
  }
  return {};
}

RopeConfig read_rope(const JsonFields& config, int64_t head_dim, int64_t max_positions, std::optional<double> partial) {
  const Source source = find_source(config);
  RopeConfig result;
  result.theta = config.positive("rope_theta", result.theta);
  result.dim = read_rotary_dim(config, head_dim, partial);
  if (source.object == nullptr) return result;
  const JsonFields rope(*source.object, config.where(), config.prefix() + source.key + ".");
  result.kind = read_kind(rope);
  result.theta = rope.positive("rope_theta", result.theta);
  if (rope.has("partial_rotary_factor")) result.dim = read_rotary_dim(rope, head_dim, partial);
  if (result.kind == RopeKind::kLinear) result.factor = rope.positive("factor");
  if (result.kind == RopeKind::kYarn) read_yarn(config, rope, max_positions, result);
  if (result.kind == RopeKind::kYarn && result.theta == 1.0) throw rope.error("rope_theta", "yarn needs another value");
  return result;
}

std::vector<int64_t> read_mrope_section(const JsonFields& config, const RopeConfig& rope_config) {
  const Source source = find_source(config);
  if (source.object == nullptr) return {};
  const JsonFields rope(*source.object, config.where(), config.prefix() + source.key + ".");
  if (!rope.boolean("mrope_interleaved", true)) {
    throw rope.error("mrope_interleaved", "angles of several axes are interleaved in this model");
  }
  std::vector<int64_t> sections = rope.integers("mrope_section", {0, kLengths.most});
  const int64_t total = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  if (!sections.empty() && (sections.size() != 3 || total != rope_config.dim / 2)) {
    throw rope.error("mrope_section", fmt::format("its {} numbers sum to {}; expected 3 that sum to {}, the angles of "
                                                  "the {} rotated elements of a head",
                                                  sections.size(), total, rope_config.dim / 2, rope_config.dim));
  }
  return sections;
}

// The operations and their order are those of transformers, in fp32, so that the tables are equal to the bit.
at::Tensor inverse_frequencies(const RopeConfig& config) {
  const at::Tensor steps = at::arange(0, config.dim, 2, at::kLong).to(at::kFloat) / config.dim;
  const at::Tensor periods = at::pow(at::Scalar(config.theta), steps);
  at::Tensor plain = 1.0 / periods;
  if (config.kind == RopeKind::kDefault) return plain;
  if (config.kind == RopeKind::kLinear) return plain / config.factor;
  const Ramp ramp = yarn_ramp(config);
  const at::Tensor ramps =
      at::clamp((at::arange(config.dim / 2, at::kFloat) - ramp.low) / (ramp.high - ramp.low), 0, 1);
  const at::Tensor keep = 1.0 - ramps;
  return 1.0 / (config.factor * periods) * (1.0 - keep) + plain * keep;
}

RotaryTables::RotaryTables(const RopeConfig& config, std::vector<int64_t> mrope_section)
    : config_(config), mrope_section_(std::move(mrope_section)) {}

RotaryAngles RotaryTables::angles(const at::Tensor& positions_T, const at::Tensor& axis_positions_AT) {
  if (!axis_positions_AT.defined()) {
    cover(positions_T);
    return {positions_T, cos_PR_, sin_PR_};
  }
  EXPERTMESH_CHECK(!mrope_section_.empty(), "positions on {} axes for a model of one", axis_positions_AT.size(0));
  cover(axis_positions_AT);
  const ops::TokenAngles angles = ops::interleaved_angles(axis_positions_AT, cos_PR_, sin_PR_, mrope_section_);
  return {angles.positions_T, angles.cos_TR, angles.sin_TR};
}

void RotaryTables::cover(const at::Tensor& positions) {
  if (positions.numel() == 0 && cos_PR_.defined()) return;
  const int64_t needed = positions.numel() == 0 ? 1 : positions.max().item<int64_t>() + 1;
  EXPERTMESH_CHECK(needed <= kLengths.most, "position {}", needed - 1);
  if (cos_PR_.defined() && cos_PR_.size(0) >= needed) return;
  int64_t length = 256;
  while (length < needed) length *= 2;
  if (!frequencies_R_.defined()) frequencies_R_ = inverse_frequencies(config_);
  const at::Tensor angles = at::arange(length, at::kLong).to(at::kFloat).unsqueeze(1) * frequencies_R_;
  cos_PR_ = at::cos(angles) * config_.attention_factor;
  sin_PR_ = at::sin(angles) * config_.attention_factor;
}

}  // namespace expertmesh::model
