// SPDX-License-Identifier: Apache-2.0
#include "ckpt/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_set>

#include "base/check.h"
#include "base/json.h"

namespace expertmesh::ckpt {
namespace {

// The order of the dtypes in a file as the reference implementation has it: the widest first.
int dtype_rank(DType dtype) {
  static constexpr std::array kOrder{DType::kU64,    DType::kI64,    DType::kF64, DType::kF32, DType::kU32,
                                     DType::kI32,    DType::kBF16,   DType::kF16, DType::kU16, DType::kI16,
                                     DType::kF8E4M3, DType::kF8E5M2, DType::kI8,  DType::kU8,  DType::kBool};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

std::string header_text(const std::vector<TensorInfo>& tensors, const Metadata& metadata, uint64_t first) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text += base::json_quote(key) + ":" + base::json_quote(value);
    }
    text += '}';
  }
  for (const TensorInfo& tensor : tensors) {
    if (text.size() > 1) text += ',';
    text += base::json_quote(tensor.name);
    text += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[", dtype_name(tensor.dtype));
    for (size_t d = 0; d < tensor.shape.size(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ",", tensor.shape[d]);
    text += fmt::format("],\"data_offsets\":[{},{}]}}", tensor.begin - first, tensor.end - first);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

SafetensorsPlan plan_safetensors(std::vector<TensorSpec> tensors, const Metadata& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::make_tuple(dtype_rank(a.dtype), std::string_view(a.name)) <
           std::make_tuple(dtype_rank(b.dtype), std::string_view(b.name));
  });
  SafetensorsPlan plan;
  uint64_t at = 0;
  std::unordered_set<std::string> names;
  for (TensorSpec& tensor : tensors) {
    EXPERTMESH_CHECK(names.insert(tensor.name).second, "tensor {} twice", tensor.name);
    const uint64_t bytes = static_cast<uint64_t>(numel(tensor.shape)) * dtype_bytes(tensor.dtype);
    plan.tensors.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), at, at + bytes});
    at += bytes;
  }
  const std::string json = header_text(plan.tensors, metadata, 0);
  for (size_t i = 0; i < 8; ++i) plan.head += static_cast<char>((json.size() >> (8 * i)) & 0xffU);
  plan.head += json;
  for (TensorInfo& tensor : plan.tensors) {
    tensor.begin += plan.head.size();
    tensor.end += plan.head.size();
  }
  plan.file_bytes = plan.head.size() + at;
  return plan;
}

SafetensorsWriter::SafetensorsWriter(base::FileSystem& fs, std::string path, SafetensorsPlan plan)
    : fs_(fs), path_(std::move(path)), plan_(std::move(plan)), file_(fs.create(path_)), written_(plan_.tensors.size()) {
  file_->append(plan_.head);
}

void SafetensorsWriter::write(size_t index, uint64_t offset, std::span<const std::byte> bytes) {
  const TensorInfo& tensor = plan_.tensors.at(index);
  EXPERTMESH_CHECK(offset <= tensor.bytes() && bytes.size() <= tensor.bytes() - offset,
                   "bytes {} to {} of {} with {} bytes", offset, offset + bytes.size(), tensor.name, tensor.bytes());
  file_->pwrite(bytes, tensor.begin + offset);
  written_[index] += bytes.size();
}

void SafetensorsWriter::finish() {
  for (size_t i = 0; i < written_.size(); ++i) {
    const TensorInfo& tensor = plan_.tensors[i];
    EXPERTMESH_CHECK(written_[i] == tensor.bytes(), "{} of {} bytes of {} were written", written_[i].load(),
                     tensor.bytes(), tensor.name);
  }
  file_->sync();
  file_->close();
  verify_safetensors(fs_, path_, plan_);
}

void verify_safetensors(const base::FileSystem& fs, const std::string& path, const SafetensorsPlan& plan) {
  const auto file = fs.open_read(path);
  std::string head(std::min<uint64_t>(plan.head.size(), file->size()), '\0');
  file->pread(std::as_writable_bytes(std::span(head)), 0);
  if (head != plan.head || file->size() != plan.file_bytes) {
    throw base::make_error(fs.code(), "ckpt/save", "what was written does not read back: {} bytes, expected {}",
                           file->size(), plan.file_bytes)
        .at(path);
  }
}

}  // namespace expertmesh::ckpt
