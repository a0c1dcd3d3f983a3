// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "comm/reduce.h"

namespace expertmesh::comm {
namespace {

int64_t width_of(DType dtype) { return static_cast<int64_t>(base::dtype_bytes(dtype)); }

// The peers of `me` in an order that starts behind it, so that not all ranks read the same one at once; itself last.
template <typename Visit>
void for_each_peer(int size, int me, Visit visit) {
  for (int step = 1; step <= size; ++step) visit((me + step) % size);
}

}  // namespace

void copy_all_gather(Calls calls, int me) {
  const auto& mine = calls[static_cast<size_t>(me)]->gather;
  for (size_t part = 0; part < mine.size(); ++part) {
    for_each_peer(static_cast<int>(calls.size()), me, [&](int peer) {
      place_gathered(mine[part], peer, calls[static_cast<size_t>(peer)]->gather[part].local);
    });
  }
}

void sum_reduce_scatter(Calls calls, int me) {
  const auto& mine = calls[static_cast<size_t>(me)]->reduce;
  std::vector<const void*> sources(calls.size());
  for (size_t index = 0; index < mine.size(); ++index) {
    const ReducePart& part = mine[index];
    const int64_t len = part.lens[static_cast<size_t>(me)];
    if (len == 0) continue;
    const int64_t width = width_of(part.dtype);
    const int64_t stride = sum_of(part.lens) * width;
    const int64_t offset = offset_of(part.lens, me) * width;
    for (int64_t row = 0; row < part.rows; ++row) {
      for (size_t rank = 0; rank < calls.size(); ++rank) {
        sources[rank] = static_cast<const std::byte*>(calls[rank]->reduce[index].full) + row * stride + offset;
      }
      sum_to_float(sources, part.dtype, part.local + row * len, len, part.accumulate);
    }
  }
}

void copy_all_to_all(Calls calls, int me) {
  const AllToAllPart& mine = calls[static_cast<size_t>(me)]->exchange;
  for_each_peer(static_cast<int>(calls.size()), me, [&](int peer) {
    const AllToAllPart& theirs = calls[static_cast<size_t>(peer)]->exchange;
    const int64_t bytes = mine.recv_counts[static_cast<size_t>(peer)] * mine.row_bytes;
    copy_rows(static_cast<std::byte*>(mine.recv) + offset_of(mine.recv_counts, peer) * mine.row_bytes, bytes,
              static_cast<const std::byte*>(theirs.send) + offset_of(theirs.send_counts, me) * mine.row_bytes, bytes, 1,
              bytes);
  });
}

void copy_broadcast(Calls calls, int me) {
  const Collective& mine = *calls[static_cast<size_t>(me)];
  if (mine.root == me || mine.data.empty()) return;
  std::memcpy(mine.data.data(), calls[static_cast<size_t>(mine.root)]->data.data(), mine.data.size());
}

void reduce_own_slice(Calls calls, int me) {
  const Collective& mine = *calls[static_cast<size_t>(me)];
  std::vector<const void*> sources(calls.size());
  for (size_t index = 0; index < mine.all_reduce.size(); ++index) {
    const AllReducePart& part = mine.all_reduce[index];
    const Slice range = slice_of(part.count, static_cast<int>(calls.size()), me);
    const int64_t offset = range.begin * width_of(part.dtype);
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      sources[rank] = static_cast<const std::byte*>(calls[rank]->all_reduce[index].data) + offset;
    }
    reduce_in_place(sources, part.dtype, mine.reduce_op, static_cast<std::byte*>(part.data) + offset,
                    range.end - range.begin);
  }
}

void copy_reduced_slices(Calls calls, int me) {
  const Collective& mine = *calls[static_cast<size_t>(me)];
  for (size_t index = 0; index < mine.all_reduce.size(); ++index) {
    const AllReducePart& part = mine.all_reduce[index];
    for_each_peer(static_cast<int>(calls.size()), me, [&](int peer) {
      if (peer == me) return;
      const Slice range = slice_of(part.count, static_cast<int>(calls.size()), peer);
      const int64_t offset = range.begin * width_of(part.dtype);
      const int64_t bytes = (range.end - range.begin) * width_of(part.dtype);
      const void* from = calls[static_cast<size_t>(peer)]->all_reduce[index].data;
      copy_rows(static_cast<std::byte*>(part.data) + offset, bytes, static_cast<const std::byte*>(from) + offset, bytes,
                1, bytes);
    });
  }
}

void reduce_to_scratch(Calls calls, std::byte* scratch) {
  const Collective& first = *calls[0];
  std::vector<const void*> sources(calls.size());
  for (size_t index = 0; index < first.all_reduce.size(); ++index) {
    const AllReducePart& part = first.all_reduce[index];
    for (size_t rank = 0; rank < calls.size(); ++rank) sources[rank] = calls[rank]->all_reduce[index].data;
    reduce_in_place(sources, part.dtype, first.reduce_op, scratch, part.count);
    scratch += (part.count * width_of(part.dtype) + 7) / 8 * 8;
  }
}

void write_from_scratch(const Collective& mine, const std::byte* scratch) {
  for (const AllReducePart& part : mine.all_reduce) {
    const int64_t bytes = part.count * width_of(part.dtype);
    copy_rows(static_cast<std::byte*>(part.data), bytes, scratch, bytes, 1, bytes);
    scratch += (bytes + 7) / 8 * 8;
  }
}

std::string find_difference(Calls calls, std::span<const int> members) {
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    if (agree(*calls[0], *calls[rank])) continue;
    return fmt::format("rank {} calls {}, rank {} calls {}", members[0], describe(*calls[0]), members[rank],
                       describe(*calls[rank]));
  }
  if (calls[0]->op != Op::kAllToAll) return {};
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      const int64_t sent = calls[from]->exchange.send_counts[to];
      const int64_t wanted = calls[to]->exchange.recv_counts[from];
      if (sent == wanted) continue;
      return fmt::format("in {} rank {} sends {} rows to rank {}, which expects {}", describe(*calls[0]), members[from],
                         sent, members[to], wanted);
    }
  }
  return {};
}

}  // namespace expertmesh::comm
