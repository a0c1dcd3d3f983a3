// SPDX-License-Identifier: Apache-2.0
// The weight files of a Hugging Face model directory: `model.safetensors`, or the shards that
// `model.safetensors.index.json` names. All headers are read and cross-checked at once; no tensor bytes are.
// The directory is untrusted: every file must lie inside it (a link may point into the blobs folder of the hub's own
// cache, nowhere else outside). Pickles are never opened.
// Threads: any, after construction. Errors: the file system's code (kModel), with file and tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "ckpt/model_index.h"
#include "ckpt/safetensors.h"

namespace expertmesh::ckpt {

struct ModelTensor {
  TensorInfo info;
  size_t file = 0;
};

class ModelFiles {
 public:
  ModelFiles(const base::FileSystem& fs, std::string directory);

  const std::string& directory() const { return directory_; }
  const std::vector<std::string>& file_names() const { return file_names_; }
  const std::vector<ModelTensor>& tensors() const { return tensors_; }  // by file, then by offset
  uint64_t total_bytes() const;                                         // of all tensors

  const ModelTensor* find(std::string_view name) const;  // nullptr: there is none
  // "model-00001-of-00002.safetensors: tensor x", for messages.
  std::string where(const ModelTensor& tensor) const;

  // Reads `bytes.size()` bytes of the tensor from byte `offset` of it.
  void read(const ModelTensor& tensor, uint64_t offset, std::span<std::byte> bytes) const;

 private:
  void add_file(const base::FileSystem& fs, const std::string& name);
  void add_indexed(const base::FileSystem& fs);
  void index_tensors();
  void compare_with(const ModelIndex& index, const std::string& path) const;

  std::string directory_;
  base::Code code_;
  std::vector<std::string> file_names_;
  std::vector<std::unique_ptr<base::ReadableFile>> files_;
  std::vector<ModelTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views of the names in tensors_
};

}  // namespace expertmesh::ckpt
