// SPDX-License-Identifier: Apache-2.0
// Loading by plan: a model's weight table is matched with what a model directory holds before any byte is read or any
// parameter allocated. All faults (missing, unexpected, wrong shape, not a float, twice) come as one error with the
// first ten and the count. Then each rank reads the slices it keeps, and only those. Every rank builds the same plan
// from the same files; compare digest() across ranks before loading. Threads: any, after construction. Errors: kModel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ckpt/model_files.h"
#include "ckpt/weight_table.h"

namespace expertmesh::ckpt {

class LoadPlan {
 public:
  // The table must outlive the plan.
  LoadPlan(std::shared_ptr<const ModelFiles> files, const WeightTable& table);

  const ModelFiles& files() const { return *files_; }
  const WeightTable& table() const { return *table_; }

  // Copies the slice of parameter `name` to `destination` (contiguous, the slice's shape), converted to `dtype`: kF32
  // or kBF16, or the source's own dtype, which copies the bytes. Rounds to nearest even.
  void load_slice(std::string_view name, const Slice& slice, void* destination, DType dtype) const;

  // The layout that the checkpoint has for this parameter.
  const SourceLayout& layout(std::string_view name) const;
  // The dtype of its tensors; nothing where they differ.
  std::optional<DType> source_dtype(std::string_view name) const;

  // Tensors that the model does not read but a saved model carries on.
  const std::vector<const ModelTensor*>& pass_through() const { return pass_through_; }

  // Names, shapes, dtypes and layouts in one short text.
  std::string digest() const;

 private:
  struct Item {
    const SourceLayout* layout = nullptr;
    std::vector<const ModelTensor*> tensors;  // one a piece
  };

  std::shared_ptr<const ModelFiles> files_;
  const WeightTable* table_;
  std::vector<Item> items_;  // by index in the table
  std::vector<const ModelTensor*> pass_through_;
};

}  // namespace expertmesh::ckpt
