// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last 2048 collectives of one rank, always on. Dumped at a timeout or an error.
// Owns: a fixed ring; nothing is allocated while recording. Threads: any (one lock, held for a copy of one entry).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace expertmesh::comm {

// What a collective does; `describe` gives "all_to_all", ...
enum class Op : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast, kBarrier, kWindow };
std::string_view op_name(Op op);

class Ledger {
 public:
  static constexpr size_t kEntries = 2048;
  using Clock = std::chrono::steady_clock;

  enum class State : uint8_t { kPosted, kWaiting, kDone, kFailed };

  struct Entry {
    std::array<char, 24> axis{};  // cut where longer, always ends with a zero
    std::array<char, 56> tag{};
    uint64_t sequence = 0;  // of the axis, from 1
    int64_t elements = 0;
    int64_t bytes = 0;  // this rank's own contribution
    int64_t step = -1;
    int micro_batch = -1;
    Op op = Op::kBarrier;
    base::DType dtype = base::DType::kU8;
    State state = State::kPosted;
    Clock::time_point posted, started, ended;

    std::string_view axis_text() const { return axis.data(); }
    std::string_view tag_text() const { return tag.data(); }
  };

  // A ticket names an entry until the ring has gone round.
  using Ticket = uint64_t;
  Ticket post(std::string_view axis, uint64_t sequence, Op op, base::DType dtype, int64_t elements, int64_t bytes,
              std::string_view tag);
  void mark(Ticket ticket, State state);

  // Written into the entries that follow, and named by messages. micro_batch -1: between or after them.
  void set_step(int64_t step, int micro_batch);
  int64_t step() const;  // -1 before the first

  // The newest entry; the newest one that is done; the oldest one that waits.
  std::optional<Entry> last() const;
  std::optional<Entry> last_done() const;
  std::optional<Entry> waiting() const;
  uint64_t count() const;              // since the start
  std::vector<Entry> entries() const;  // oldest first

  // {"rank": 2, "count": 812, "entries": [{"axis": "ep", "sequence": 812, "op": "all_to_all", ...}, ...]}
  std::string to_json(int rank) const;
  // One line an entry, the last `limit`.
  std::string to_text(int rank, size_t limit = 32) const;

 private:
  mutable std::mutex mutex_;
  uint64_t next_ = 0;
  int64_t step_ = -1;
  int micro_batch_ = -1;
  std::vector<Entry> ring_ = std::vector<Entry>(kEntries);
};

// "all_to_all #812 (layer 17 combine, step 40)": how messages name a collective; without the step before the first.
std::string describe(Op op, uint64_t sequence, std::string_view tag, int64_t step);
std::string describe(const Ledger::Entry& entry);

}  // namespace expertmesh::comm
