// SPDX-License-Identifier: Apache-2.0
#include "ckpt/tensor_reader.h"

#include <algorithm>

#include "ckpt/convert.h"

namespace expertmesh::ckpt {
namespace {

constexpr int64_t kBufferBytes = 512 << 10;  // half of a usual second-level cache
constexpr int64_t kLongRunBytes = 64 << 10;  // worth a system call of its own

}  // namespace

TensorReader::TensorReader(const ModelFiles& files)
    : files_(files), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

void TensorReader::read(const ModelTensor& tensor, RunBlock block, std::byte* destination, DType dtype) {
  if (block.rows > 1 && block.source_stride == block.run && block.target_stride == block.run) {
    block.run *= block.rows;  // rows that follow each other on both sides are one run
    block.rows = 1;
  }
  const auto size = static_cast<int64_t>(dtype_bytes(tensor.info.dtype));
  const bool is_long = block.rows == 1 || block.run * size >= kLongRunBytes;
  if (is_long && tensor.info.dtype == dtype) return read_direct(tensor, block, destination);
  // Short runs: whole spans are read, unless too much of them would be for nothing.
  const bool is_sparse = block.source_stride > 8 * block.run && (block.source_stride - block.run) * size > 4096;
  if (!is_long && !is_sparse && block.source_stride * size <= kBufferBytes) {
    return read_rows(tensor, block, destination, dtype);
  }
  const auto target_size = static_cast<int64_t>(dtype_bytes(dtype));
  for (int64_t row = 0; row < block.rows; ++row) {
    read_run(tensor, block.source + row * block.source_stride, block.run,
             destination + (block.target + row * block.target_stride) * target_size, dtype);
  }
}

void TensorReader::read_direct(const ModelTensor& tensor, const RunBlock& block, std::byte* destination) {
  const auto size = static_cast<int64_t>(dtype_bytes(tensor.info.dtype));
  for (int64_t row = 0; row < block.rows; ++row) {
    std::byte* to = destination + (block.target + row * block.target_stride) * size;
    files_.read(tensor, static_cast<uint64_t>((block.source + row * block.source_stride) * size),
                {to, static_cast<size_t>(block.run * size)});
  }
}

void TensorReader::read_run(const ModelTensor& tensor, int64_t source, int64_t count, std::byte* destination,
                            DType dtype) {
  const auto size = static_cast<int64_t>(dtype_bytes(tensor.info.dtype));
  const auto target_size = static_cast<int64_t>(dtype_bytes(dtype));
  for (int64_t done = 0; done < count;) {
    const int64_t part = std::min(count - done, kBufferBytes / size);
    files_.read(tensor, static_cast<uint64_t>((source + done) * size),
                {buffer_.get(), static_cast<size_t>(part * size)});
    convert_elements(buffer_.get(), tensor.info.dtype, destination + done * target_size, dtype, part);
    done += part;
  }
}

void TensorReader::read_rows(const ModelTensor& tensor, const RunBlock& block, std::byte* destination, DType dtype) {
  const auto size = static_cast<int64_t>(dtype_bytes(tensor.info.dtype));
  const auto target_size = static_cast<int64_t>(dtype_bytes(dtype));
  const int64_t rows_at_once = kBufferBytes / (block.source_stride * size);
  for (int64_t row = 0; row < block.rows; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, block.rows - row);
    const int64_t span = (rows - 1) * block.source_stride + block.run;  // the last row may end the tensor
    files_.read(tensor, static_cast<uint64_t>((block.source + row * block.source_stride) * size),
                {buffer_.get(), static_cast<size_t>(span * size)});
    for (int64_t i = 0; i < rows; ++i) {
      convert_elements(buffer_.get() + i * block.source_stride * size, tensor.info.dtype,
                       destination + (block.target + (row + i) * block.target_stride) * target_size, dtype, block.run);
    }
  }
}

}  // namespace expertmesh::ckpt
