// SPDX-License-Identifier: Apache-2.0
// Reads blocks of runs of one tensor into a buffer in memory, converting on the way. Long runs of the right type go
// straight to their place; everything else passes through a buffer that stays in the cache.
#pragma once

#include <cstddef>
#include <memory>

#include "ckpt/model_files.h"
#include "ckpt/slice.h"

namespace expertmesh::ckpt {

// One thread.
class TensorReader {
 public:
  explicit TensorReader(const ModelFiles& files);

  // Runs of `block` from the tensor to `destination`, which holds elements of `dtype`.
  void read(const ModelTensor& tensor, RunBlock block, std::byte* destination, DType dtype);

 private:
  void read_direct(const ModelTensor& tensor, const RunBlock& block, std::byte* destination);
  void read_run(const ModelTensor& tensor, int64_t source, int64_t count, std::byte* destination, DType dtype);
  void read_rows(const ModelTensor& tensor, const RunBlock& block, std::byte* destination, DType dtype);

  const ModelFiles& files_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace expertmesh::ckpt
