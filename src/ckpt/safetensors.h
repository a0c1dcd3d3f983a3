// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, read strictly: a file is accepted whole or refused with what is wrong with which
// tensor. Nothing is allocated on the word of the file; no tensor bytes are touched.
// Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors back to back without a gap.
// Errors: the file system's code, the path in `where`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "ckpt/slice.h"

namespace expertmesh::ckpt {

using base::DType;

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxDims = 64;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;
};

SafetensorsHeader read_safetensors_header(const base::ReadableFile& file, const std::string& path, base::Code code);

// The same for the JSON text alone, with the number of bytes that come before and after it in the file.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_begin, uint64_t data_bytes,
                                           const std::string& path, base::Code code);

// A tensor name fit for a message: control characters escaped, very long ones cut.
std::string display_name(std::string_view name);

}  // namespace expertmesh::ckpt
