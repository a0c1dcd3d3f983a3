// SPDX-License-Identifier: Apache-2.0
// A rank thread's end of a group: posts its calls into the group's slots, and in wait() meets its peers, compares the
// calls, and copies or reduces straight out of their memory.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "comm/collective.h"
#include "comm/threads/job.h"

namespace expertmesh::comm {

class ThreadsWork;

// Threads: one, the rank's.
class ThreadsEndpoint : public std::enable_shared_from_this<ThreadsEndpoint> {
 public:
  ThreadsEndpoint(std::shared_ptr<ThreadsJob> job, std::shared_ptr<GroupState> group, int group_rank);

  std::unique_ptr<ThreadsWork> post(Collective collective);
  // Completes the calls in the order they were posted, up to and with `work`.
  void complete(const ThreadsWork& work);
  // A window: open() meets the members and compares, close() meets them again. drop() instead of close() where this
  // rank unwinds.
  void open(ThreadsWork& work);
  void close(ThreadsWork& work);
  void drop(ThreadsWork& work);
  // All members' calls, while open.
  std::span<const Collective* const> calls_of(const ThreadsWork& work) const;
  // Ends the job without a cause: this rank's exception is on its way to the rank wrapper.
  void abandon() { job_->claim_abort(rank_); }

 private:
  class Reading;

  int size() const { return static_cast<int>(group_->members.size()); }
  Slot& slot_of(const ThreadsWork& work) const;
  uint32_t target_of(const ThreadsWork& work) const;
  WaitPlace place_of(const ThreadsWork& work) const;

  void finish_oldest();
  void start_waiting(ThreadsWork& work);
  void start_reading(const ThreadsWork& work) const;
  void finish(ThreadsWork& work);
  void fail(ThreadsWork& work);
  void leave_failed(ThreadsWork& work);
  void run(const ThreadsWork& work);
  void transfer(const ThreadsWork& work, const Slot& slot);
  void run_all_reduce(const ThreadsWork& work, Slot& slot);
  void arrive_and_wait(const ThreadsWork& work, Meet& meet, uint32_t target, Phase phase);
  void wait_for(const ThreadsWork& work, Meet& meet, uint32_t target, Phase phase);
  int find_left(uint64_t needed) const;
  base::Error timeout(const ThreadsWork& work, uint64_t needed) const;
  void verify(const ThreadsWork& work, const Slot& slot) const;

  std::shared_ptr<ThreadsJob> job_;
  std::shared_ptr<GroupState> group_;
  int group_rank_;
  int rank_;  // global
  uint64_t sequence_ = 0;
  std::deque<ThreadsWork*> pending_;  // oldest first
  std::array<uint32_t, GroupState::kSlots> reduce_uses_{};
  std::vector<std::byte> scratch_;
};

std::shared_ptr<Group> make_threads_group(std::shared_ptr<ThreadsJob> job, std::shared_ptr<GroupState> state,
                                          int group_rank);

}  // namespace expertmesh::comm
