// SPDX-License-Identifier: Apache-2.0
#include "ckpt/load_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <unordered_set>

#include "base/check.h"
#include "base/crc32c.h"
#include "ckpt/convert.h"
#include "ckpt/fault_list.h"
#include "ckpt/tensor_reader.h"

namespace expertmesh::ckpt {
namespace {

size_t num_present(const ModelFiles& files, const SourceLayout& layout) {
  return static_cast<size_t>(std::count_if(layout.pieces.begin(), layout.pieces.end(), [&](const SourcePiece& piece) {
    return files.find(piece.name) != nullptr;
  }));
}

// The layout of an entry that the files hold most of; the checkpoint's usual one where they hold nothing of it.
class LayoutChooser {
 public:
  LayoutChooser(const ModelFiles& files, const WeightTable& table) : files_(files) {
    for (const WeightEntry& entry : table.entries()) {
      for (const SourceLayout& layout : entry.layouts) tensors_of_[layout.name] += num_present(files, layout);
    }
  }

  const SourceLayout& choose(const WeightEntry& entry) const {
    const SourceLayout* best = nullptr;
    std::array<double, 2> best_score{};
    for (const SourceLayout& layout : entry.layouts) {
      const double part = static_cast<double>(num_present(files_, layout)) / static_cast<double>(layout.pieces.size());
      const std::array<double, 2> score{part, static_cast<double>(tensors_of_.at(layout.name))};
      const bool is_alias = layout.name == "alias";  // only in the place of what is absent
      if (best == nullptr || (is_alias ? part > best_score[0] : score > best_score)) {
        best = &layout;
        best_score = score;
      }
    }
    return *best;
  }

 private:
  const ModelFiles& files_;
  std::map<std::string, size_t> tensors_of_;
};

bool equal_bytes(const ModelFiles& files, const ModelTensor& a, const ModelTensor& b) {
  if (a.info.dtype != b.info.dtype || a.info.shape != b.info.shape) return false;
  constexpr uint64_t kChunk = 1 << 20;
  std::vector<std::byte> x(kChunk), y(kChunk);
  for (uint64_t at = 0; at < a.info.bytes(); at += kChunk) {
    const size_t count = std::min(kChunk, a.info.bytes() - at);
    files.read(a, at, std::span(x).first(count));
    files.read(b, at, std::span(y).first(count));
    if (std::memcmp(x.data(), y.data(), count) != 0) return false;
  }
  return true;
}

}  // namespace

LoadPlan::LoadPlan(std::shared_ptr<const ModelFiles> files, const WeightTable& table)
    : files_(std::move(files)), table_(&table) {
  const LayoutChooser chooser(*files_, table);
  FaultList faults;
  std::unordered_set<const ModelTensor*> used;
  for (const WeightEntry& entry : table.entries()) {
    Item item{.layout = &chooser.choose(entry), .tensors = {}};
    for (const SourcePiece& piece : item.layout->pieces) {
      const ModelTensor* tensor = files_->find(piece.name);
      item.tensors.push_back(tensor);
      if (tensor == nullptr) {
        faults.add("missing", piece.name);
        continue;
      }
      used.insert(tensor);
      if (tensor->info.shape != piece.shape) {
        faults.add("wrong shape", fmt::format("{} has {}, expected {}", piece.name, shape_text(tensor->info.shape),
                                              shape_text(piece.shape)));
      } else if (!base::is_floating(tensor->info.dtype)) {
        faults.add("no float type", fmt::format("{} is {}", piece.name, dtype_name(tensor->info.dtype)));
      }
    }
    items_.push_back(std::move(item));
  }
  for (const SourceAlias& alias : table.aliases()) {
    const ModelTensor* copy = files_->find(alias.name);
    const ModelTensor* original = files_->find(alias.same_as);
    if (copy == nullptr || original == nullptr || !used.insert(copy).second) continue;
    if (!equal_bytes(*files_, *copy, *original)) {
      faults.add("tied but different", fmt::format("{} and {}", alias.name, alias.same_as));
    }
  }
  for (const ModelTensor& tensor : files_->tensors()) {
    if (used.contains(&tensor)) continue;
    if (table.is_pass_through(tensor.info.name)) {
      pass_through_.push_back(&tensor);
    } else {
      faults.add("unexpected", display_name(tensor.info.name));
    }
  }
  if (!faults.empty()) {
    throw base::make_error(base::Code::kModel, "ckpt/weights", "{} in the weights: {}", faults.count_text("fault"),
                           faults.text())
        .at(files_->directory())
        .hint("Weights and config.json must belong to the same model.");
  }
}

void LoadPlan::load_slice(std::string_view name, const Slice& slice, void* destination, DType dtype) const {
  const size_t index = table_->index(name);
  const WeightEntry& entry = table_->entries()[index];
  EXPERTMESH_CHECK(slice.fits(entry.shape), "slice {} of {} {}", slice.text(), name, shape_text(entry.shape));
  const Item& item = items_[index];
  TensorReader reader(*files_);
  for (size_t i = 0; i < item.tensors.size(); ++i) {
    const SourcePiece& piece = item.layout->pieces[i];
    const auto part = intersect(piece.box, slice);
    if (!part) continue;
    for_each_block(*part, piece.box, slice, [&](const RunBlock& block) {
      reader.read(*item.tensors[i], block, static_cast<std::byte*>(destination), dtype);
    });
  }
}

const SourceLayout& LoadPlan::layout(std::string_view name) const { return *items_[table_->index(name)].layout; }

std::optional<DType> LoadPlan::source_dtype(std::string_view name) const {
  const Item& item = items_[table_->index(name)];
  const DType dtype = item.tensors.front()->info.dtype;
  const bool is_uniform = std::all_of(item.tensors.begin(), item.tensors.end(),
                                      [&](const ModelTensor* tensor) { return tensor->info.dtype == dtype; });
  return is_uniform ? std::optional(dtype) : std::nullopt;
}

std::string LoadPlan::digest() const {
  uint32_t crc = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    crc = base::crc32c(table_->entries()[i].name + " " + items_[i].layout->name, crc);
  }
  for (const ModelTensor& tensor : files_->tensors()) {
    crc = base::crc32c(
        fmt::format("{} {} {}", tensor.info.name, dtype_name(tensor.info.dtype), shape_text(tensor.info.shape)), crc);
  }
  return fmt::format("{} parameters from {} tensors, {} bytes, {:08x}", items_.size(), files_->tensors().size(),
                     files_->total_bytes(), crc);
}

}  // namespace expertmesh::ckpt
