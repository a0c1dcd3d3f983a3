// SPDX-License-Identifier: Apache-2.0
// Messages: the parts one after the other, each from a multiple of 8 bytes. Strided tensors are packed row
// by row on the sender's side. Routes:
//   all_gather, barrier, small all_reduce   one gather; where shards are very uneven, an exchange of copies
//   reduce_scatter                          an exchange of slices; the receiver sums them in rank order
//   all_reduce                              the same, then a gather of the sums
//   all_to_all                              an exchange
// so that sums are taken in the same order, by the same code, as in the threads engine.
#include "comm/c10d/packing.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/dtype.h"
#include "comm/reduce.h"

namespace expertmesh::comm {
namespace {

constexpr int64_t kSmallBytes = 65536;  // all_reduce in one step
constexpr int64_t kPaddingAllowed = 1 << 20;

int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }
int64_t width_of(DType dtype) { return static_cast<int64_t>(base::dtype_bytes(dtype)); }

int64_t gather_bytes(const Collective& collective, int rank) {
  int64_t bytes = 0;
  for (const GatherPart& part : collective.gather) {
    bytes += padded(part.rows * part.lens[static_cast<size_t>(rank)] * width_of(part.dtype));
  }
  return bytes;
}

int64_t reduce_bytes(const Collective& collective, int rank) {
  int64_t bytes = 0;
  for (const ReducePart& part : collective.reduce) {
    bytes += padded(part.rows * part.lens[static_cast<size_t>(rank)] * width_of(part.dtype));
  }
  return bytes;
}

int64_t slice_bytes(const AllReducePart& part, int size, int rank) {
  const Slice slice = slice_of(part.count, size, rank);
  return (slice.end - slice.begin) * width_of(part.dtype);
}

int64_t all_reduce_bytes(const Collective& collective, int size, int rank) {
  int64_t bytes = 0;
  for (const AllReducePart& part : collective.all_reduce) bytes += padded(slice_bytes(part, size, rank));
  return bytes;
}

int64_t whole_bytes(const Collective& collective) {
  int64_t bytes = 0;
  for (const AllReducePart& part : collective.all_reduce) bytes += padded(part.count * width_of(part.dtype));
  return bytes;
}

Layout same_for_all(Route route, int64_t payload, int size) {
  const auto n = static_cast<size_t>(size);
  return {route, std::vector<int64_t>(n, payload), std::vector<int64_t>(n, payload)};
}

Layout exchange(int size, const std::function<int64_t(int)>& to, const std::function<int64_t(int)>& from) {
  Layout layout{Route::kAllToAll, {}, {}};
  for (int peer = 0; peer < size; ++peer) {
    layout.send.push_back(to(peer));
    layout.recv.push_back(from(peer));
  }
  return layout;
}

Layout gather_layout(const Collective& collective, int size, int rank) {
  int64_t largest = 0;
  int64_t total = 0;
  for (int peer = 0; peer < size; ++peer) {
    largest = std::max(largest, gather_bytes(collective, peer));
    total += gather_bytes(collective, peer);
  }
  if (largest * size <= 2 * total + kPaddingAllowed) return same_for_all(Route::kAllGather, largest, size);
  return exchange(
      size, [&](int) { return gather_bytes(collective, rank); },
      [&](int peer) { return gather_bytes(collective, peer); });
}

struct FrameHeader {
  uint64_t call = 0;  // hash of op, tag and sizes
  uint64_t sequence = 0;
  int64_t rows = 0;  // all_to_all: how many follow
  int64_t has_more = 0;
};

constexpr auto kInlineBytes = kFrameBytes - static_cast<int64_t>(sizeof(FrameHeader));

int64_t rows_to(const Collective& collective, int peer) {
  return collective.op == Op::kAllToAll ? collective.exchange.send_counts[static_cast<size_t>(peer)] : 0;
}

int64_t rows_from(const Collective& collective, int peer) {
  return collective.op == Op::kAllToAll ? collective.exchange.recv_counts[static_cast<size_t>(peer)] : 0;
}

FrameHeader header_of(const Collective& collective, uint64_t sequence, int64_t rows) {
  const uint64_t name = std::hash<std::string_view>()(collective.tag);
  const uint64_t call = (name ^ collective.shape) * 31 + static_cast<uint64_t>(collective.op);
  return {.call = call, .sequence = sequence, .rows = rows};
}

// Only the root has something to say in a broadcast.
bool is_silent(const Collective& collective, int rank) {
  return collective.op == Op::kBroadcast && rank != collective.root;
}

// Appends bytes at a position that grows by whole 8s.
struct Writer {
  std::byte* at;
  void put(const void* from, int64_t from_stride, int64_t rows, int64_t row_bytes) {
    copy_rows(at, row_bytes, static_cast<const std::byte*>(from), from_stride, rows, row_bytes);
    at += padded(rows * row_bytes);
  }
};

void pack_message(const Collective& collective, int size, int to, std::byte* payload) {
  Writer writer{payload};
  for (const GatherPart& part : collective.gather) {
    const int64_t bytes = part.rows * part.lens[static_cast<size_t>(to)] * width_of(part.dtype);
    writer.put(part.local, bytes, 1, bytes);
  }
  for (const ReducePart& part : collective.reduce) {
    const int64_t width = width_of(part.dtype);
    const auto* from = static_cast<const std::byte*>(part.full) + offset_of(part.lens, to) * width;
    writer.put(from, sum_of(part.lens) * width, part.rows, part.lens[static_cast<size_t>(to)] * width);
  }
  const bool is_sliced = is_two_step(collective, size);
  for (const AllReducePart& part : collective.all_reduce) {
    const int64_t begin = is_sliced ? slice_of(part.count, size, to).begin * width_of(part.dtype) : 0;
    const int64_t bytes = is_sliced ? slice_bytes(part, size, to) : part.count * width_of(part.dtype);
    writer.put(static_cast<const std::byte*>(part.data) + begin, bytes, 1, bytes);
  }
  if (collective.op == Op::kAllToAll) {
    const AllToAllPart& part = collective.exchange;
    const int64_t bytes = part.send_counts[static_cast<size_t>(to)] * part.row_bytes;
    const auto* from = static_cast<const std::byte*>(part.send) + offset_of(part.send_counts, to) * part.row_bytes;
    writer.put(from, bytes, 1, bytes);
  }
  if (collective.op == Op::kBroadcast) {
    const auto bytes = static_cast<int64_t>(collective.data.size());
    writer.put(collective.data.data(), bytes, 1, bytes);
  }
}

// The payloads of all ranks, advanced together part by part.
std::vector<const void*> payloads(const Layout& layout, const std::byte* recv) {
  std::vector<const void*> starts;
  starts.reserve(layout.recv.size());
  for (const int64_t bytes : layout.recv) {
    starts.push_back(recv);
    recv += bytes;
  }
  return starts;
}

void advance(std::vector<const void*>& sources, int64_t bytes) {
  for (const void*& source : sources) source = static_cast<const std::byte*>(source) + padded(bytes);
}

void unpack_reduced(const Collective& collective, int rank, std::vector<const void*> sources) {
  for (const ReducePart& part : collective.reduce) {
    const int64_t count = part.rows * part.lens[static_cast<size_t>(rank)];
    sum_to_float(sources, part.dtype, part.local, count, part.accumulate);
    advance(sources, count * width_of(part.dtype));
  }
  const int size = static_cast<int>(sources.size());
  const bool is_sliced = is_two_step(collective, size);
  for (const AllReducePart& part : collective.all_reduce) {
    const Slice slice = is_sliced ? slice_of(part.count, size, rank) : Slice{0, part.count};
    const int64_t width = width_of(part.dtype);
    reduce_in_place(sources, part.dtype, collective.reduce_op, static_cast<std::byte*>(part.data) + slice.begin * width,
                    slice.end - slice.begin);
    advance(sources, (slice.end - slice.begin) * width);
  }
}

}  // namespace

int64_t Layout::send_total() const {
  return route == Route::kAllToAll ? std::accumulate(send.begin(), send.end(), int64_t{0}) : send[0];
}

int64_t Layout::recv_total() const {
  return route == Route::kBroadcast ? recv[0] : std::accumulate(recv.begin(), recv.end(), int64_t{0});
}

bool is_two_step(const Collective& collective, int size) {
  return collective.op == Op::kAllReduce && size > 1 && whole_bytes(collective) > kSmallBytes;
}

Layout layout_of(const Collective& collective, int size, int rank) {
  switch (collective.op) {
    case Op::kAllGather:
      return gather_layout(collective, size, rank);
    case Op::kReduceScatter:
      return exchange(
          size, [&](int to) { return reduce_bytes(collective, to); },
          [&](int) { return reduce_bytes(collective, rank); });
    case Op::kAllReduce:
      if (!is_two_step(collective, size)) return same_for_all(Route::kAllGather, whole_bytes(collective), size);
      return exchange(
          size, [&](int to) { return all_reduce_bytes(collective, size, to); },
          [&](int) { return all_reduce_bytes(collective, size, rank); });
    case Op::kAllToAll: {
      const AllToAllPart& part = collective.exchange;
      return exchange(
          size, [&](int to) { return padded(part.send_counts[static_cast<size_t>(to)] * part.row_bytes); },
          [&](int from) { return padded(part.recv_counts[static_cast<size_t>(from)] * part.row_bytes); });
    }
    case Op::kBroadcast:
      return same_for_all(Route::kBroadcast, padded(static_cast<int64_t>(collective.data.size())), size);
    case Op::kBarrier:
    case Op::kWindow:
      break;
  }
  return same_for_all(Route::kAllGather, 0, size);
}

void pack(const Collective& collective, const Layout& layout, int rank, std::byte* send) {
  if (is_silent(collective, rank)) return;
  const int size = static_cast<int>(layout.send.size());
  const int num_messages = layout.route == Route::kAllToAll ? size : 1;
  for (int to = 0; to < num_messages; ++to) {
    // A gather sends this rank's own shard, to whomever it goes.
    pack_message(collective, size, collective.op == Op::kAllGather ? rank : to, send);
    send += layout.send[static_cast<size_t>(to)];
  }
}

bool fits_frames(const Layout& layout, int rank, const Collective& collective) {
  return is_silent(collective, rank) || (!is_two_step(collective, static_cast<int>(layout.send.size())) &&
                                         *std::max_element(layout.send.begin(), layout.send.end()) <= kInlineBytes);
}

void write_frames(const Collective& collective, uint64_t sequence, const Layout& layout, int rank, std::byte* frames) {
  const int size = static_cast<int>(layout.send.size());
  const bool is_inline = fits_frames(layout, rank, collective);
  for (int to = 0; to < size; ++to) {
    FrameHeader header = header_of(collective, sequence, rows_to(collective, to));
    header.has_more = is_inline ? 0 : 1;
    std::byte* frame = frames + to * kFrameBytes;
    std::memset(frame, 0, kFrameBytes);
    std::memcpy(frame, &header, sizeof header);
    if (!is_inline || is_silent(collective, rank)) continue;
    pack_message(collective, size, collective.op == Op::kAllGather ? rank : to, frame + sizeof header);
  }
}

std::optional<Stranger> find_stranger(const Collective& collective, uint64_t sequence, int size,
                                      const std::byte* frames) {
  for (int from = 0; from < size; ++from) {
    FrameHeader header;
    std::memcpy(&header, frames + from * kFrameBytes, sizeof header);
    const FrameHeader wanted = header_of(collective, sequence, rows_from(collective, from));
    const bool is_other_call = header.call != wanted.call || header.sequence != sequence;
    if (is_other_call || header.rows != wanted.rows) return Stranger{from, is_other_call, header.rows, wanted.rows};
  }
  return std::nullopt;
}

bool is_all_in_frames(int size, const std::byte* frames) {
  for (int from = 0; from < size; ++from) {
    FrameHeader header;
    std::memcpy(&header, frames + from * kFrameBytes, sizeof header);
    if (header.has_more != 0) return false;
  }
  return true;
}

void read_frames(const Collective& collective, const Layout& layout, const std::byte* frames, std::byte* recv) {
  const bool is_broadcast = layout.route == Route::kBroadcast;
  const size_t num_messages = is_broadcast ? 1 : layout.recv.size();
  for (size_t message = 0; message < num_messages; ++message) {
    const auto from = is_broadcast ? collective.root : static_cast<int>(message);
    std::memcpy(recv, frames + from * kFrameBytes + sizeof(FrameHeader), static_cast<size_t>(layout.recv[message]));
    recv += layout.recv[message];
  }
}

void unpack(const Collective& collective, const Layout& layout, int rank, const std::byte* recv) {
  std::vector<const void*> sources = payloads(layout, recv);
  switch (collective.op) {
    case Op::kAllGather:
      for (const GatherPart& part : collective.gather) {
        for (size_t from = 0; from < sources.size(); ++from) {
          place_gathered(part, static_cast<int>(from), sources[from]);
          const int64_t bytes = part.rows * part.lens[from] * width_of(part.dtype);
          sources[from] = static_cast<const std::byte*>(sources[from]) + padded(bytes);
        }
      }
      return;
    case Op::kReduceScatter:
    case Op::kAllReduce:
      return unpack_reduced(collective, rank, std::move(sources));
    case Op::kAllToAll: {
      const AllToAllPart& part = collective.exchange;
      auto* to = static_cast<std::byte*>(part.recv);
      for (size_t from = 0; from < sources.size(); ++from) {
        const int64_t bytes = part.recv_counts[from] * part.row_bytes;
        copy_rows(to, bytes, static_cast<const std::byte*>(sources[from]), bytes, 1, bytes);
        to += bytes;
      }
      return;
    }
    case Op::kBroadcast:
      if (rank != collective.root && !collective.data.empty()) {
        std::memcpy(collective.data.data(), sources[0], collective.data.size());
      }
      return;
    case Op::kBarrier:
    case Op::kWindow:
      return;
  }
}

Layout second_layout(const Collective& collective, int size) {
  int64_t largest = 0;
  for (int peer = 0; peer < size; ++peer) largest = std::max(largest, all_reduce_bytes(collective, size, peer));
  return same_for_all(Route::kAllGather, largest, size);
}

void pack_second(const Collective& collective, const Layout& layout, int rank, std::byte* send) {
  pack_message(collective, static_cast<int>(layout.send.size()), rank, send);
}

void unpack_second(const Collective& collective, const Layout& layout, int rank, const std::byte* recv) {
  const int size = static_cast<int>(layout.recv.size());
  const std::vector<const void*> starts = payloads(layout, recv);
  for (int from = 0; from < size; ++from) {
    const auto* at = static_cast<const std::byte*>(starts[static_cast<size_t>(from)]);
    for (const AllReducePart& part : collective.all_reduce) {
      const int64_t bytes = slice_bytes(part, size, from);
      std::byte* to =
          static_cast<std::byte*>(part.data) + slice_of(part.count, size, from).begin * width_of(part.dtype);
      if (from != rank) copy_rows(to, bytes, at, bytes, 1, bytes);
      at += padded(bytes);
    }
  }
}

}  // namespace expertmesh::comm
