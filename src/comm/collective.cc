// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace expertmesh::comm {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

void check_lens(std::span<const int64_t> lens, int size, std::string_view tag) {
  EXPERTMESH_CHECK(static_cast<int>(lens.size()) == size, "{}: {} lens for {} ranks", tag, lens.size(), size);
  for (const int64_t len : lens) EXPERTMESH_CHECK(len >= 0, "{}: negative length {}", tag, len);
}

// Copies the lens of all parts into one vector and points the parts at it. Callers often pass spans of temporaries.
template <typename Part>
void own_lens(Collective& collective, std::vector<Part>& parts, int size) {
  collective.sizes.reserve(parts.size() * static_cast<size_t>(size));
  for (const Part& part : parts) {
    check_lens(part.lens, size, collective.tag);
    EXPERTMESH_CHECK(part.rows >= 0, "{}: {} rows", collective.tag, part.rows);
    collective.sizes.insert(collective.sizes.end(), part.lens.begin(), part.lens.end());
  }
  const int64_t* at = collective.sizes.data();
  for (Part& part : parts) {
    part.lens = {at, static_cast<size_t>(size)};
    at += size;
    collective.shape = mix(collective.shape, static_cast<uint64_t>(part.rows));
    collective.shape = mix(collective.shape, static_cast<uint64_t>(part.dtype));
    for (const int64_t len : part.lens) collective.shape = mix(collective.shape, static_cast<uint64_t>(len));
    collective.elements += part.rows * sum_of(part.lens);
  }
  if (!parts.empty()) collective.dtype = parts.front().dtype;
}

}  // namespace

int64_t sum_of(std::span<const int64_t> lens) { return std::accumulate(lens.begin(), lens.end(), int64_t{0}); }

int64_t offset_of(std::span<const int64_t> lens, int index) { return sum_of(lens.first(static_cast<size_t>(index))); }

Collective make_all_gather(std::vector<GatherPart> parts, int size, int rank, std::string_view tag) {
  Collective collective;
  collective.op = Op::kAllGather;
  collective.tag = tag;
  own_lens(collective, parts, size);
  for (const GatherPart& part : parts) {
    collective.bytes +=
        part.rows * part.lens[static_cast<size_t>(rank)] * static_cast<int64_t>(base::dtype_bytes(part.dtype));
  }
  collective.gather = std::move(parts);
  return collective;
}

Collective make_reduce_scatter(std::vector<ReducePart> parts, int size, std::string_view tag) {
  Collective collective;
  collective.op = Op::kReduceScatter;
  collective.tag = tag;
  own_lens(collective, parts, size);
  for (const ReducePart& part : parts) {
    EXPERTMESH_CHECK(part.dtype == DType::kF32 || part.dtype == DType::kBF16, "{}: reduce_scatter of {}", tag,
                     base::dtype_name(part.dtype));
    collective.bytes += part.rows * sum_of(part.lens) * static_cast<int64_t>(base::dtype_bytes(part.dtype));
  }
  collective.reduce = std::move(parts);
  return collective;
}

Collective make_all_reduce(std::vector<AllReducePart> parts, ReduceOp op, std::string_view tag) {
  Collective collective;
  collective.op = Op::kAllReduce;
  collective.reduce_op = op;
  collective.tag = tag;
  collective.shape = mix(0, static_cast<uint64_t>(op));
  for (const AllReducePart& part : parts) {
    EXPERTMESH_CHECK(part.dtype == DType::kF32 || part.dtype == DType::kBF16 || part.dtype == DType::kF64 ||
                         part.dtype == DType::kI64,
                     "{}: all_reduce of {}", tag, base::dtype_name(part.dtype));
    EXPERTMESH_CHECK(part.count >= 0, "{}: {} elements", tag, part.count);
    collective.shape = mix(collective.shape, static_cast<uint64_t>(part.dtype));
    collective.shape = mix(collective.shape, static_cast<uint64_t>(part.count));
    collective.elements += part.count;
    collective.bytes += part.count * static_cast<int64_t>(base::dtype_bytes(part.dtype));
  }
  if (!parts.empty()) collective.dtype = parts.front().dtype;
  collective.all_reduce = std::move(parts);
  return collective;
}

Collective make_all_to_all(AllToAllPart part, int size, std::string_view tag) {
  Collective collective;
  collective.op = Op::kAllToAll;
  collective.tag = tag;
  check_lens(part.send_counts, size, tag);
  check_lens(part.recv_counts, size, tag);
  EXPERTMESH_CHECK(part.row_bytes >= 0, "{}: rows of {} bytes", tag, part.row_bytes);
  const auto n = static_cast<size_t>(size);
  collective.sizes.reserve(2 * n);
  collective.sizes.insert(collective.sizes.end(), part.send_counts.begin(), part.send_counts.end());
  collective.sizes.insert(collective.sizes.end(), part.recv_counts.begin(), part.recv_counts.end());
  part.send_counts = {collective.sizes.data(), n};
  part.recv_counts = {collective.sizes.data() + n, n};
  collective.elements = sum_of(part.send_counts);
  collective.bytes = collective.elements * part.row_bytes;
  collective.shape = mix(0, static_cast<uint64_t>(part.row_bytes));
  collective.exchange = part;
  return collective;
}

Collective make_broadcast(std::span<std::byte> data, int root, int size, std::string_view tag) {
  EXPERTMESH_CHECK(root >= 0 && root < size, "{}: root {} of {} ranks", tag, root, size);
  Collective collective;
  collective.op = Op::kBroadcast;
  collective.tag = tag;
  collective.root = root;
  collective.data = data;
  collective.elements = static_cast<int64_t>(data.size());
  collective.bytes = collective.elements;
  collective.shape = mix(mix(0, static_cast<uint64_t>(root)), data.size());
  return collective;
}

Collective make_barrier(std::string_view tag) {
  Collective collective;
  collective.tag = tag;
  return collective;
}

Collective make_window(std::span<void* const> buffers, std::string_view tag) {
  Collective collective;
  collective.op = Op::kWindow;
  collective.tag = tag;
  collective.window.assign(buffers.begin(), buffers.end());
  collective.elements = static_cast<int64_t>(buffers.size());
  collective.shape = mix(0, buffers.size());
  return collective;
}

bool agree(const Collective& a, const Collective& b) { return a.op == b.op && a.shape == b.shape && a.tag == b.tag; }

std::string describe(const Collective& collective) {
  std::string text = fmt::format("{} \"{}\"", op_name(collective.op), collective.tag);
  switch (collective.op) {
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllReduce: {
      const size_t parts = collective.gather.size() + collective.reduce.size() + collective.all_reduce.size();
      return text + fmt::format(" ({}, {} parts, {} elements)", base::dtype_name(collective.dtype), parts,
                                collective.elements);
    }
    case Op::kAllToAll:
      return text + fmt::format(" (rows of {} bytes)", collective.exchange.row_bytes);
    case Op::kBroadcast:
      return text + fmt::format(" ({} bytes from rank {} of the group)", collective.bytes, collective.root);
    case Op::kWindow:
      return text + fmt::format(" ({} buffers)", collective.window.size());
    case Op::kBarrier:
      return text;
  }
  return text;
}

Slice slice_of(int64_t count, int size, int index) {
  constexpr int64_t kAlign = 64;  // no two ranks write into one cache line
  const int64_t step = ((count + size - 1) / size + kAlign - 1) / kAlign * kAlign;
  return {std::min(count, step * index), std::min(count, step * (index + 1))};
}

void copy_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, int64_t rows,
               int64_t row_bytes) {
  if (rows <= 0 || row_bytes <= 0 || to == from) return;
  if (rows == 1 || (to_stride == row_bytes && from_stride == row_bytes)) {
    std::memcpy(to, from, static_cast<size_t>(rows * row_bytes));
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, static_cast<size_t>(row_bytes));
  }
}

void place_gathered(const GatherPart& mine, int source, const void* local) {
  const auto width = static_cast<int64_t>(base::dtype_bytes(mine.dtype));
  const int64_t row_bytes = mine.lens[static_cast<size_t>(source)] * width;
  const int64_t full_stride = sum_of(mine.lens) * width;
  std::byte* to = static_cast<std::byte*>(mine.full) + offset_of(mine.lens, source) * width;
  copy_rows(to, full_stride, static_cast<const std::byte*>(local), row_bytes, mine.rows, row_bytes);
}

std::string_view wait_name(base::Lane lane) {
  static constexpr std::array<std::string_view, base::kNumLanes> kNames{"wait", "wait: exchange", "wait: FSDP",
                                                                        "wait: agreement"};
  return kNames[static_cast<size_t>(lane)];
}

base::Lane lane_of(const base::Trace& trace, Op op) {
  if (trace.posting_lane() != base::Lane::kCompute) return trace.posting_lane();
  return op == Op::kAllToAll || op == Op::kWindow ? base::Lane::kExchange : base::Lane::kAgreement;
}

namespace {

// Shows a call in the trace of its rank: on its way until this rank knows that it is complete, and the wait for that.
class TracedWork : public Work {
 public:
  TracedWork(std::unique_ptr<Work> work, base::Trace& trace, const base::Trace::Flight& flight)
      : work_(std::move(work)), trace_(trace), flight_(flight) {}
  TracedWork(const TracedWork&) = delete;
  TracedWork& operator=(const TracedWork&) = delete;
  ~TracedWork() override {
    if (!is_waited_) trace_.land(flight_);
  }

  void wait() override {
    if (is_waited_) return;
    {
      const base::Span span(wait_name(flight_.lane), flight_.lane, trace_.name(flight_.detail));
      work_->wait();
    }
    is_waited_ = true;
    trace_.land(flight_);
  }

 private:
  std::unique_ptr<Work> work_;
  base::Trace& trace_;  // outlives what was posted while it was attached
  base::Trace::Flight flight_;
  bool is_waited_ = false;
};

}  // namespace

std::unique_ptr<Work> PostingGroup::start(Collective collective) {
  base::Trace* trace = base::current_trace();
  if (trace == nullptr || size() == 1) [[likely]]
    return post(std::move(collective));
  const base::Trace::Flight flight = trace->launch(
      op_name(collective.op), collective.tag, lane_of(*trace, collective.op), static_cast<double>(collective.bytes));
  return std::make_unique<TracedWork>(post(std::move(collective)), *trace, flight);
}

std::unique_ptr<Work> PostingGroup::all_gather_async(std::vector<GatherPart> parts, std::string_view tag) {
  return start(make_all_gather(std::move(parts), size(), rank(), tag));
}

std::unique_ptr<Work> PostingGroup::reduce_scatter_async(std::vector<ReducePart> parts, std::string_view tag) {
  return start(make_reduce_scatter(std::move(parts), size(), tag));
}

std::unique_ptr<Work> PostingGroup::all_reduce_async(std::vector<AllReducePart> parts, ReduceOp op,
                                                     std::string_view tag) {
  return start(make_all_reduce(std::move(parts), op, tag));
}

std::unique_ptr<Work> PostingGroup::all_to_all_async(AllToAllPart part, std::string_view tag) {
  return start(make_all_to_all(part, size(), tag));
}

std::unique_ptr<Work> PostingGroup::broadcast_async(std::span<std::byte> data, int root, std::string_view tag) {
  return start(make_broadcast(data, root, size(), tag));
}

void PostingGroup::barrier(std::string_view tag) { start(make_barrier(tag))->wait(); }

}  // namespace expertmesh::comm
