// SPDX-License-Identifier: Apache-2.0
// Writing a safetensors file: the tensors are declared first, which fixes every offset; then their bytes arrive in any
// order and from any thread. Same bytes as the reference implementation writes: tensors by dtype, then name; the
// header padded with spaces to 8 bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "ckpt/safetensors.h"

namespace expertmesh::ckpt {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Everything about a file before its first tensor byte. Pure: all ranks compute the same.
struct SafetensorsPlan {
  std::string head;                 // the length and the padded JSON
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  uint64_t file_bytes = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Programmer error for duplicate names.
SafetensorsPlan plan_safetensors(std::vector<TensorSpec> tensors, const Metadata& metadata = {});

// One file written by one process.
class SafetensorsWriter {
 public:
  SafetensorsWriter(base::FileSystem& fs, std::string path, SafetensorsPlan plan);

  const SafetensorsPlan& plan() const { return plan_; }
  // Bytes of tensor `index` of the plan from `offset` on. Threads: any.
  void write(size_t index, uint64_t offset, std::span<const std::byte> bytes);
  // Syncs, closes, reads the header back. Programmer error (kInternal) unless every byte was written exactly once.
  void finish();

 private:
  base::FileSystem& fs_;
  std::string path_;
  SafetensorsPlan plan_;
  std::unique_ptr<base::WritableFile> file_;
  std::vector<std::atomic<uint64_t>> written_;  // bytes of each tensor
};

// Reads the file back and compares header and size with the plan. Errors: kCheckpoint-like, the file system's code.
void verify_safetensors(const base::FileSystem& fs, const std::string& path, const SafetensorsPlan& plan);

}  // namespace expertmesh::ckpt
