// SPDX-License-Identifier: Apache-2.0
// One collective as a value: what a rank asked for, with the sizes copied. Every engine works on this; the buffers stay
// the caller's. Checks of arguments that one rank can make alone are made here (programmer errors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace.h"
#include "comm/group.h"
#include "comm/ledger.h"

namespace expertmesh::comm {

// Movable only: the parts point into `sizes`.
struct Collective {
  Collective() = default;
  Collective(Collective&&) = default;
  Collective& operator=(Collective&&) = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  Op op = Op::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;
  std::string tag;
  std::vector<int64_t> sizes;  // lens of all parts, or send_counts and recv_counts
  std::vector<GatherPart> gather;
  std::vector<ReducePart> reduce;
  std::vector<AllReducePart> all_reduce;
  AllToAllPart exchange;
  std::span<std::byte> data;  // broadcast
  std::vector<void*> window;

  DType dtype = DType::kU8;  // of the first part, for messages
  int64_t elements = 0;      // all parts of the whole tensor; rows sent for all_to_all
  int64_t bytes = 0;         // this rank's own contribution
  uint64_t shape = 0;        // hash of all that must agree between ranks beside op and tag
};

Collective make_all_gather(std::vector<GatherPart> parts, int size, int rank, std::string_view tag);
Collective make_reduce_scatter(std::vector<ReducePart> parts, int size, std::string_view tag);
Collective make_all_reduce(std::vector<AllReducePart> parts, ReduceOp op, std::string_view tag);
Collective make_all_to_all(AllToAllPart part, int size, std::string_view tag);
Collective make_broadcast(std::span<std::byte> data, int root, int size, std::string_view tag);
Collective make_barrier(std::string_view tag);
Collective make_window(std::span<void* const> buffers, std::string_view tag);

// Same op, tag and sizes on both ranks.
bool agree(const Collective& a, const Collective& b);
// all_gather "layer 3 experts" (BF16, 2 parts, 4096 elements)
std::string describe(const Collective& collective);

// Sum of lens before `index`.
int64_t offset_of(std::span<const int64_t> lens, int index);
int64_t sum_of(std::span<const int64_t> lens);

// Rank `index`'s share of `count` elements that are reduced in slices.
struct Slice {
  int64_t begin, end;
};
Slice slice_of(int64_t count, int size, int index);

// `rows` pieces of row_bytes from one strided buffer to another; nothing where both are the same.
void copy_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, int64_t rows,
               int64_t row_bytes);

// What rank `source` holds of a gathered tensor, into this rank's full tensor.
void place_gathered(const GatherPart& mine, int source, const void* local);

// The six async calls of Group as one: engines implement post(). Where the rank records a trace, what is on its way and
// the waits for it are in it.
class PostingGroup : public Group {
 public:
  PostingGroup(std::string name, std::vector<int> members, int rank)
      : name_(std::move(name)), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Work> all_gather_async(std::vector<GatherPart> parts, std::string_view tag) override;
  std::unique_ptr<Work> reduce_scatter_async(std::vector<ReducePart> parts, std::string_view tag) override;
  std::unique_ptr<Work> all_reduce_async(std::vector<AllReducePart> parts, ReduceOp op, std::string_view tag) override;
  std::unique_ptr<Work> all_to_all_async(AllToAllPart part, std::string_view tag) override;
  std::unique_ptr<Work> broadcast_async(std::span<std::byte> data, int root, std::string_view tag) override;
  void barrier(std::string_view tag) override;

 protected:
  virtual std::unique_ptr<Work> post(Collective collective) = 0;

 private:
  std::unique_ptr<Work> start(Collective collective);

  std::string name_;
  std::vector<int> members_;
  int rank_;
};

// How the waits for what goes on a lane are named in a trace.
std::string_view wait_name(base::Lane lane);
// On which lane a trace shows a collective that is posted now.
base::Lane lane_of(const base::Trace& trace, Op op);

}  // namespace expertmesh::comm
