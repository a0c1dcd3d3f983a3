// SPDX-License-Identifier: Apache-2.0
// What the rank threads of one process share: their groups, their flight recorders, and the abort.
// Owns: all of it, until the last rank has left. Threads: any; the slots of a group are for its members.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/ledger.h"
#include "comm/wait.h"
#include "comm/wait_report.h"
#include "comm/world.h"

namespace expertmesh::comm {

// One collective in flight: what each member posted, and the meets on its way. Used again every kSlots collectives.
struct Slot {
  Meet posted;   // every member has written its call
  Meet reduced;  // every member's slice is there (all_reduce of many elements)
  Meet done;     // nobody reads another member's memory any more
  std::vector<const Collective*> calls;
};

// How far a member has come in a collective: 4 * sequence + phase.
enum Phase : uint64_t { kPosted = 1, kReduced = 2, kFinished = 3 };

struct GroupState {
  static constexpr size_t kSlots = 16;

  GroupState(std::string axis, std::vector<int> ranks);

  std::string name;
  std::vector<int> members;
  std::array<Slot, kSlots> slots;
  std::vector<std::atomic<uint64_t>> progress;  // by group rank
};

class ThreadsJob {
 public:
  ThreadsJob(int size, WorldOptions options);

  int size() const { return static_cast<int>(ranks_.size()); }
  const WorldOptions& options() const { return options_; }
  Ledger& ledger(int rank) { return ranks_[static_cast<size_t>(rank)]->ledger; }
  Waiter& waiter(int rank) { return ranks_[static_cast<size_t>(rank)]->waiter; }

  // The shared state of group `index` of the `call`-th partition; the first member to come makes it.
  std::shared_ptr<GroupState> group(uint64_t call, size_t index, const std::string& name,
                                    const std::vector<int>& members);

  // Abort. The first claim or cause wins; a rank that claimed without knowing the cause yet fills it in later.
  bool is_aborted() const { return is_aborted_.load(std::memory_order_seq_cst); }
  void claim_abort(int rank);
  // `diverged`: the group whose members made different calls; they all report the cause itself.
  void abort(int rank, const base::Error& cause, const GroupState* diverged = nullptr);
  std::optional<base::Error> abort_cause() const;
  // What a rank that waits at `place` throws after an abort.
  base::Error abort_error(const WaitPlace& place, const GroupState& group) const;

  // Reading of peers' memory. A rank may free its buffers after an abort once no peer reads.
  void begin_reading(int rank) { ranks_[static_cast<size_t>(rank)]->is_reading.store(true, std::memory_order_seq_cst); }
  void end_reading(int rank) { ranks_[static_cast<size_t>(rank)]->is_reading.store(false, std::memory_order_seq_cst); }
  void wait_for_readers(const GroupState& group, int rank) const;

  // The end of a rank's thread.
  void leave(int rank);                    // returned normally
  void fail(int rank, base::Error error);  // threw
  bool has_left(int rank) const { return ranks_[static_cast<size_t>(rank)]->has_left.load(std::memory_order_acquire); }
  bool has_any_left() const { return num_left_.load(std::memory_order_acquire) > 0; }
  void thread_ended();
  // True when all threads have ended; false where one has not, `stuck_after` from an abort.
  bool wait_for_threads();

  // Nothing where the job did not fail.
  std::optional<FailureReport> failure();

 private:
  struct Rank {
    explicit Rank(int spins) : waiter(spins) {}
    Waiter waiter;
    Ledger ledger;
    alignas(64) std::atomic<bool> is_reading{false};
    std::atomic<bool> has_left{false};
  };

  void set_aborted(int rank);  // with mutex_ held
  void wake_all();

  WorldOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<int> num_left_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  int num_ended_ = 0;
  std::map<std::pair<uint64_t, size_t>, std::shared_ptr<GroupState>> groups_;
  int aborted_by_ = -1;
  WaitClock::time_point aborted_at_;
  std::optional<base::Error> cause_;
  const GroupState* diverged_ = nullptr;
  std::vector<base::Error> failures_;  // in order of arrival
};

}  // namespace expertmesh::comm
