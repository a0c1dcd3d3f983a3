// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/json.h"
#include "ckpt/convert.h"
#include "ckpt/hf_save.h"

namespace expertmesh::ckpt {
namespace {

const SourceLayout& choose_layout(const WeightEntry& entry, const LoadPlan* source, ExpertLayout wanted) {
  if (wanted != ExpertLayout::kSource) {
    const std::string_view name = wanted == ExpertLayout::kSplit ? "split" : "fused";
    for (const SourceLayout& layout : entry.layouts) {
      if (layout.name == name) return layout;
    }
  }
  return source == nullptr ? entry.layouts.front() : source->layout(entry.name);
}

}  // namespace

SavePlan::SavePlan(const WeightTable& table, const LoadPlan* source, const SaveOptions& options)
    : table_(&table), source_(source), options_(options), by_entry_(table.entries().size()) {
  EXPERTMESH_CHECK(options_.dtype == DType::kBF16 || options_.dtype == DType::kF32);
  for (size_t i = 0; i < table.entries().size(); ++i) add_entry(i);
  if (source_ != nullptr) add_pass_through();
  assign_files();
}

bool SavePlan::wants(std::string_view name) const {
  return source_ == nullptr || !options_.is_trained || options_.is_trained(name);
}

DType SavePlan::output_dtype(const WeightEntry& entry, bool from_source) const {
  if (!from_source && !entry.keep_dtype) return options_.dtype;
  if (source_ == nullptr) return DType::kF32;  // what must keep its precision, in a new model
  const DType dtype = source_->source_dtype(entry.name).value_or(DType::kF32);
  return from_source || can_convert(DType::kF32, dtype) ? dtype : options_.dtype;
}

void SavePlan::add_entry(size_t index) {
  const WeightEntry& entry = table_->entries()[index];
  const SourceLayout& layout = choose_layout(entry, source_, options_.layout);
  const bool from_source = !wants(entry.name);
  const bool is_source_layout = source_ != nullptr && &layout == &source_->layout(entry.name);
  const DType dtype = output_dtype(entry, from_source);
  for (const SourcePiece& piece : layout.pieces) {
    Output output;
    output.name = piece.name;
    output.dtype = dtype;
    output.shape = piece.shape;
    output.entry = static_cast<int>(index);
    output.box = piece.box;
    output.from_source = from_source;
    const ModelTensor* tensor = is_source_layout ? source_->files().find(piece.name) : nullptr;
    if (from_source && tensor != nullptr) {
      output.copied = tensor;
      output.dtype = tensor->info.dtype;
    }
    by_entry_[index].push_back(outputs_.size());
    outputs_.push_back(std::move(output));
  }
}

void SavePlan::add_pass_through() {
  for (const ModelTensor* tensor : source_->pass_through()) {
    Output output;
    output.name = tensor->info.name;
    output.dtype = tensor->info.dtype;
    output.shape = tensor->info.shape;
    output.copied = tensor;
    output.from_source = true;
    outputs_.push_back(std::move(output));
  }
}

void SavePlan::assign_files() {
  std::vector<std::vector<TensorSpec>> shards(1);
  uint64_t shard_bytes = 0;
  for (Output& output : outputs_) {
    const uint64_t bytes = static_cast<uint64_t>(numel(output.shape)) * dtype_bytes(output.dtype);
    if (shard_bytes > 0 && shard_bytes + bytes > options_.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    output.file = shards.size() - 1;
    shards.back().push_back({output.name, output.dtype, output.shape});
    shard_bytes += bytes;
  }
  std::map<std::string_view, size_t> place;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    files_.push_back({name, plan_safetensors(std::move(shards[i]), {{"format", "pt"}})});
    const auto& tensors = files_.back().plan.tensors;
    for (size_t t = 0; t < tensors.size(); ++t) place.emplace(tensors[t].name, t);
  }
  for (Output& output : outputs_) output.tensor = place.at(output.name);
}

uint64_t SavePlan::total_bytes() const {
  uint64_t total = 0;
  for (const File& file : files_) total += file.plan.file_bytes;
  return total;
}

std::string SavePlan::index_json() const {
  if (files_.size() == 1) return {};
  std::map<std::string, std::string> sorted;
  int64_t total_size = 0;
  for (const Output& output : outputs_) {
    sorted.emplace(output.name, files_[output.file].name);
    total_size += numel(output.shape) * static_cast<int64_t>(dtype_bytes(output.dtype));
  }
  base::Json::Object map;
  for (const auto& [tensor, file] : sorted) map.emplace_back(tensor, file);
  const base::Json index =
      base::Json::Object{{"metadata", base::Json::Object{{"total_size", total_size}}}, {"weight_map", std::move(map)}};
  return base::dump_json(index, base::JsonStyle::kPretty) + "\n";
}

}  // namespace expertmesh::ckpt
