// SPDX-License-Identifier: Apache-2.0
#include "shard/flat_exchange.h"

#include <cstring>
#include <numeric>

namespace expertmesh::shard {
namespace {

// Where rank `rank`'s columns stand in a full tensor [rows, sum(lens)], in bytes.
struct Columns {
  int64_t rows;
  size_t offset, bytes, stride;
};

Columns columns_of(const std::span<const int64_t>& lens, int64_t rows, int rank, size_t element) {
  const int64_t before = std::accumulate(lens.begin(), lens.begin() + rank, int64_t{0});
  const int64_t total = std::accumulate(lens.begin(), lens.end(), int64_t{0});
  return {rows, before * element, lens[rank] * element, total * element};
}

std::byte* unpack(void* full, const std::byte* from, const Columns& c) {
  for (int64_t row = 0; row < c.rows && c.bytes > 0; ++row) {
    std::memcpy(static_cast<std::byte*>(full) + row * c.stride + c.offset, from + row * c.bytes, c.bytes);
  }
  return const_cast<std::byte*>(from) + c.rows * c.bytes;
}

std::byte* pack(std::byte* to, const void* full, const Columns& c) {
  for (int64_t row = 0; row < c.rows && c.bytes > 0; ++row) {
    std::memcpy(to + row * c.bytes, static_cast<const std::byte*>(full) + row * c.stride + c.offset, c.bytes);
  }
  return to + c.rows * c.bytes;
}

// The parts of one dtype, packed, reduced as one, and given to their local tensors.
void reduce_one_dtype(comm::Group& group, const std::vector<const comm::ReducePart*>& parts, comm::DType dtype,
                      std::string_view tag) {
  const size_t element = base::dtype_bytes(dtype);
  std::vector<int64_t> lens(group.size(), 0);
  for (const comm::ReducePart* part : parts) {
    for (int rank = 0; rank < group.size(); ++rank) lens[rank] += part->rows * part->lens[rank];
  }
  const auto full =
      std::make_unique_for_overwrite<std::byte[]>(std::accumulate(lens.begin(), lens.end(), size_t{0}) * element);
  std::byte* to = full.get();
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const comm::ReducePart* part : parts)
      to = pack(to, part->full, columns_of(part->lens, part->rows, rank, element));
  }
  const auto local = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(lens[group.rank()]));
  group.reduce_scatter({{.full = full.get(), .local = local.get(), .rows = 1, .lens = lens, .dtype = dtype}}, tag);
  const float* from = local.get();
  for (const comm::ReducePart* part : parts) {
    const int64_t count = part->rows * part->lens[group.rank()];
    for (int64_t i = 0; i < count; ++i) part->local[i] = part->accumulate ? part->local[i] + from[i] : from[i];
    from += count;
  }
}

}  // namespace

FlatGather::FlatGather(comm::Group& group, std::vector<comm::GatherPart> parts, std::string_view tag)
    : group_(group), parts_(std::move(parts)), bytes_(group.size(), 0) {
  for (const comm::GatherPart& part : parts_) {
    for (int rank = 0; rank < group.size(); ++rank) {
      bytes_[rank] += part.rows * part.lens[rank] * static_cast<int64_t>(base::dtype_bytes(part.dtype));
    }
  }
  // Not zeroed first: every byte is written.
  local_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_[group.rank()]));
  full_ = std::make_unique_for_overwrite<std::byte[]>(std::accumulate(bytes_.begin(), bytes_.end(), size_t{0}));
  std::byte* to = local_.get();
  for (const comm::GatherPart& part : parts_) {
    const size_t bytes = part.rows * part.lens[group.rank()] * base::dtype_bytes(part.dtype);
    if (bytes > 0) std::memcpy(to, part.local, bytes);
    to += bytes;
  }
  work_ = group.all_gather_async(
      {{.local = local_.get(), .full = full_.get(), .rows = 1, .lens = bytes_, .dtype = comm::DType::kU8}}, tag);
}

void FlatGather::finish() {
  work_->wait();
  const std::byte* from = full_.get();
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (const comm::GatherPart& part : parts_) {
      from = unpack(part.full, from, columns_of(part.lens, part.rows, rank, base::dtype_bytes(part.dtype)));
    }
  }
}

void flat_reduce_scatter(comm::Group& group, const std::vector<comm::ReducePart>& parts, std::string_view tag) {
  for (const comm::DType dtype : {comm::DType::kF32, comm::DType::kBF16}) {
    std::vector<const comm::ReducePart*> chosen;
    for (const comm::ReducePart& part : parts) {
      if (part.dtype == dtype) chosen.push_back(&part);
    }
    if (!chosen.empty()) reduce_one_dtype(group, chosen, dtype, tag);
  }
}

}  // namespace expertmesh::shard
