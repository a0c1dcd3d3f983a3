// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json, read strictly: which tensor is in which shard. Untrusted: names stay inside the model
// directory, and memory stays within what the file takes.
// Errors: the file system's code, with the index (and line, for malformed JSON) in `where`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace expertmesh::ckpt {

struct ModelIndex {
  std::vector<std::string> files;                         // in order of first mention
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name and position in `files`, sorted by name
  int64_t total_size = -1;                                // metadata.total_size; -1 where it is missing or no integer
};

ModelIndex read_model_index(const base::FileSystem& fs, const std::string& path);

}  // namespace expertmesh::ckpt
