// SPDX-License-Identifier: Apache-2.0
// A Group is the set of ranks along one mesh axis, with its collectives. Buffers are plain pointers: no torch here.
// Collective: every rank of the group makes the same calls in the same order, also with zero elements.
// Async: the *_async forms post the operation and return; buffers must stay alive and unchanged until wait(), which
//   completes it (received data is there, and no peer reads this rank's buffers any more). Waits happen in post order.
// Reductions: summed in fp32 (fp64 and int64 in their own type) in rank order, so a run repeats to the bit.
// Errors: kPeerLost when the world was aborted, kTimeout at the deadline, kInternal when ranks issue different
//   collectives (both tags are named).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace expertmesh::comm {

using base::DType;

enum class ReduceOp { kSum, kMax, kMin };

// One tensor split over the group along one dimension. The full tensor is [rows, sum(lens)] contiguous, the local one
// of rank r is [rows, lens[r]] contiguous: Shard(0) has rows == 1, Shard(1) of [E, 2I, H] has rows == E and
// lens in elements of 2I * H. lens has one entry per rank, equal on all ranks; entries may be 0.
struct GatherPart {
  const void* local = nullptr;
  void* full = nullptr;
  int64_t rows = 1;
  std::span<const int64_t> lens;
  DType dtype = DType::kF32;
};

// The reverse: this rank's contribution to the full tensor; its slice of the sum arrives in fp32.
struct ReducePart {
  const void* full = nullptr;  // dtype: kF32 or kBF16
  float* local = nullptr;      // [rows, lens[rank]]; with one row of kF32 it may be this rank's slice of full itself
  int64_t rows = 1;
  std::span<const int64_t> lens;
  DType dtype = DType::kF32;
  bool accumulate = false;  // local += sum instead of local = sum
};

// One buffer reduced over the whole group, in place. dtype: kF32, kBF16 (summed in fp32, rounded once), kF64, kI64.
struct AllReducePart {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
};

// Rows to every rank: send holds the rows for rank 0, then rank 1, ...; counts are rows, row_bytes the size of one.
// recv_counts[r] == what rank r has in send_counts[me]; agree on them first (exchange_counts).
struct AllToAllPart {
  const void* send = nullptr;
  std::span<const int64_t> send_counts;
  void* recv = nullptr;
  std::span<const int64_t> recv_counts;
  int64_t row_bytes = 0;
};

// A posted operation. Destroying one that was not waited for waits, swallowing errors.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};

// The members' buffers, open to all of them: read and written in place, without a copy. From open_window() to close(),
// in which no other call of the group is waited for. Who writes where is agreed beforehand; closing meets the members:
// all that they wrote is there, and nobody uses this rank's buffers any more.
// Errors: one that is destroyed while its rank unwinds ends the job, and its buffers stay until no peer uses them.
class Window {
 public:
  virtual ~Window() = default;
  // Buffer `index` of group rank `member`, as given there.
  virtual void* buffer(int member, size_t index) const = 0;
  virtual void close() = 0;
};

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // the axis: "ep", "efsdp", "world", ...
  // Global ranks of the members, by group rank.
  virtual const std::vector<int>& members() const = 0;

  // `tag` names the call site ("layer 3 dispatch"); it must be the same on all ranks.
  virtual std::unique_ptr<Work> all_gather_async(std::vector<GatherPart> parts, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> reduce_scatter_async(std::vector<ReducePart> parts, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> all_reduce_async(std::vector<AllReducePart> parts, ReduceOp op,
                                                 std::string_view tag) = 0;
  virtual std::unique_ptr<Work> all_to_all_async(AllToAllPart part, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> broadcast_async(std::span<std::byte> data, int root, std::string_view tag) = 0;
  virtual void barrier(std::string_view tag) = 0;

  // Whether the members see each other's memory, so that open_window() may be called; equal on all of them.
  virtual bool shares_memory() const { return false; }
  // As many buffers on every rank; nullptr where a rank has nothing.
  virtual std::unique_ptr<Window> open_window(std::span<void* const> buffers, std::string_view tag);

  void all_gather(std::vector<GatherPart> parts, std::string_view tag) {
    all_gather_async(std::move(parts), tag)->wait();
  }
  void reduce_scatter(std::vector<ReducePart> parts, std::string_view tag) {
    reduce_scatter_async(std::move(parts), tag)->wait();
  }
  void all_reduce(std::vector<AllReducePart> parts, ReduceOp op, std::string_view tag) {
    all_reduce_async(std::move(parts), op, tag)->wait();
  }
  void all_to_all(AllToAllPart part, std::string_view tag) { all_to_all_async(part, tag)->wait(); }
  void broadcast(std::span<std::byte> data, int root, std::string_view tag) {
    broadcast_async(data, root, tag)->wait();
  }

  // Conveniences built on the above, the same on every engine.
  double all_reduce_double(double value, ReduceOp op, std::string_view tag);
  int64_t all_reduce_int(int64_t value, ReduceOp op, std::string_view tag);
  // counts[r] rows go to rank r; returns how many come from each rank.
  std::vector<int64_t> exchange_counts(std::span<const int64_t> counts, std::string_view tag);
  // Every rank's text, by group rank.
  std::vector<std::string> all_gather_text(std::string_view text, std::string_view tag);
};

}  // namespace expertmesh::comm
