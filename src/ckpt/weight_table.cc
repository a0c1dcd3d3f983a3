// SPDX-License-Identifier: Apache-2.0
#include "ckpt/weight_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace expertmesh::ckpt {
namespace {

// One expert's matrix: rows [first_row, first_row + shape[0]) of slice `expert`.
SourcePiece expert_piece(std::string name, Shape shape, int64_t expert, int64_t first_row) {
  Slice box{{expert, first_row, 0}, {expert + 1, first_row + shape[0], shape[1]}};
  return {std::move(name), std::move(shape), std::move(box)};
}

SourceLayout whole_layout(std::string name, std::string source, const Shape& shape) {
  SourceLayout layout{std::move(name), {}};
  layout.pieces.push_back({std::move(source), shape, Slice::whole(shape)});
  return layout;
}

}  // namespace

WeightEntry& WeightTable::append(WeightEntry entry) {
  const bool is_new = index_.emplace(entry.name, entries_.size()).second;
  EXPERTMESH_CHECK(is_new, "parameter {} twice", entry.name);
  entries_.push_back(std::move(entry));
  return entries_.back();
}

WeightEntry& WeightTable::add(std::string name, Shape shape, std::string source) {
  if (source.empty()) source = name;
  WeightEntry entry{.name = std::move(name), .shape = std::move(shape), .layouts = {}};
  entry.layouts.push_back(whole_layout("plain", std::move(source), entry.shape));
  return append(std::move(entry));
}

void WeightTable::add_experts(const std::string& prefix, int64_t experts, int64_t intermediate, int64_t hidden,
                              std::string source, const std::vector<std::string>& layouts) {
  if (source.empty()) source = prefix;
  WeightEntry gate_up{
      .name = prefix + ".gate_up_proj", .shape = {experts, 2 * intermediate, hidden}, .expert_dim = 0, .layouts = {}};
  WeightEntry down{
      .name = prefix + ".down_proj", .shape = {experts, hidden, intermediate}, .expert_dim = 0, .layouts = {}};
  for (const std::string& layout : layouts) {
    EXPERTMESH_CHECK(layout == "split" || layout == "fused", "layout {}", layout);
    if (layout == "fused") {
      gate_up.layouts.push_back(whole_layout(layout, source + ".gate_up_proj", gate_up.shape));
      down.layouts.push_back(whole_layout(layout, source + ".down_proj", down.shape));
      continue;
    }
    SourceLayout& gate_up_split = gate_up.layouts.emplace_back(SourceLayout{layout, {}});
    SourceLayout& down_split = down.layouts.emplace_back(SourceLayout{layout, {}});
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = fmt::format("{}.{}.", source, e);
      gate_up_split.pieces.push_back(expert_piece(expert + "gate_proj.weight", {intermediate, hidden}, e, 0));
      gate_up_split.pieces.push_back(expert_piece(expert + "up_proj.weight", {intermediate, hidden}, e, intermediate));
      down_split.pieces.push_back(expert_piece(expert + "down_proj.weight", {hidden, intermediate}, e, 0));
    }
  }
  append(std::move(gate_up));
  append(std::move(down));
}

void WeightTable::add_alias(std::string name, const std::string& same_as) {
  for (WeightEntry& entry : entries_) {
    const SourcePiece& piece = entry.layouts.front().pieces.front();
    if (piece.name != same_as) continue;
    entry.layouts.push_back(whole_layout("alias", name, entry.shape));
    aliases_.push_back({std::move(name), same_as});
    return;
  }
  EXPERTMESH_CHECK(false, "alias {} of {}, which is no tensor of the table", name, same_as);
}

bool WeightTable::is_pass_through(std::string_view source_name) const {
  return std::any_of(pass_through_.begin(), pass_through_.end(),
                     [&](const std::string& prefix) { return source_name.starts_with(prefix); });
}

size_t WeightTable::index(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  EXPERTMESH_CHECK(found != index_.end(), "no parameter {}", name);
  return found->second;
}

}  // namespace expertmesh::ckpt
