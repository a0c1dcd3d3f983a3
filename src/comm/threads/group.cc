// SPDX-License-Identifier: Apache-2.0
// Life of a collective. post(): the call is written into slot (sequence mod 16) and counted in `posted`. wait(): when
// all members are counted, every member compares all calls (so all come to the same verdict), moves the data, counts
// itself in `done` and waits for the others there; until then its buffers may be read. A slot is used again only after
// this rank itself has passed `done` of its last use, so no further guard is needed. After an abort nobody starts to
// read (Reading checks the flag after announcing itself), and who leaves first waits for those that still read: buffers
// are freed only when no peer copies from them.
#include "comm/threads/group.h"

#include <exception>

#include "base/check.h"
#include "base/fault.h"
#include "comm/rank_errors.h"
#include "comm/threads/transfer.h"
#include "comm/wait_report.h"

namespace expertmesh::comm {
namespace {

// Up to this many bytes every rank reduces everything: one meet less.
constexpr int64_t kSmallBytes = 8192;

int64_t scratch_bytes(const Collective& collective) {
  return collective.bytes + 8 * static_cast<int64_t>(collective.all_reduce.size());
}

}  // namespace

class ThreadsWork : public Work {
 public:
  ThreadsWork(std::shared_ptr<ThreadsEndpoint> owner, Collective what, uint64_t number, Ledger::Ticket entry)
      : collective(std::move(what)), sequence(number), ticket(entry), owner_(std::move(owner)) {}

  ThreadsWork(const ThreadsWork&) = delete;
  ThreadsWork& operator=(const ThreadsWork&) = delete;

  // A rank that unwinds must not wait for peers that may never come: it ends the job first.
  ~ThreadsWork() override {
    if (is_done) return;
    if (std::uncaught_exceptions() > exceptions_) owner_->abandon();
    try {
      owner_->complete(*this);
    } catch (...) {
      // The job is aborted by now, and whoever waits next reports it.
      is_done = true;
    }
  }

  void wait() override {
    if (!is_done) owner_->complete(*this);
  }

  const Collective collective;
  const uint64_t sequence;
  const Ledger::Ticket ticket;
  WaitClock::time_point waiting_since;
  bool is_done = false;
  bool is_open = false;  // a window between its two meets

 private:
  std::shared_ptr<ThreadsEndpoint> owner_;
  const int exceptions_ = std::uncaught_exceptions();
};

// The time in which this rank reads its peers' calls and buffers.
class ThreadsEndpoint::Reading {
 public:
  Reading(const ThreadsEndpoint& endpoint, const ThreadsWork& work) : job_(*endpoint.job_), rank_(endpoint.rank_) {
    endpoint.start_reading(work);
  }
  ~Reading() { job_.end_reading(rank_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  ThreadsJob& job_;
  int rank_;
};

void ThreadsEndpoint::start_reading(const ThreadsWork& work) const {
  job_->begin_reading(rank_);
  if (!job_->is_aborted()) return;
  job_->end_reading(rank_);
  throw job_->abort_error(place_of(work), *group_);
}

ThreadsEndpoint::ThreadsEndpoint(std::shared_ptr<ThreadsJob> job, std::shared_ptr<GroupState> group, int group_rank)
    : job_(std::move(job)),
      group_(std::move(group)),
      group_rank_(group_rank),
      rank_(group_->members[static_cast<size_t>(group_rank)]) {}

Slot& ThreadsEndpoint::slot_of(const ThreadsWork& work) const {
  return group_->slots[(work.sequence - 1) % GroupState::kSlots];
}

// How many arrivals a slot's meets have seen when every member is there for this use of the slot.
uint32_t ThreadsEndpoint::target_of(const ThreadsWork& work) const {
  const uint64_t use = (work.sequence - 1) / GroupState::kSlots + 1;
  return static_cast<uint32_t>(use * group_->members.size());
}

WaitPlace ThreadsEndpoint::place_of(const ThreadsWork& work) const {
  return {group_->name, rank_, work.collective.op, work.sequence, work.collective.tag, job_->ledger(rank_).step()};
}

std::unique_ptr<ThreadsWork> ThreadsEndpoint::post(Collective collective) {
  EXPERTMESH_FAULT_POINT("comm.post");
  if (pending_.size() == GroupState::kSlots) finish_oldest();
  const uint64_t sequence = sequence_ + 1;
  if (job_->is_aborted()) {
    throw job_->abort_error({group_->name, rank_, collective.op, sequence, collective.tag, job_->ledger(rank_).step()},
                            *group_);
  }
  const auto ticket = job_->ledger(rank_).post(group_->name, sequence, collective.op, collective.dtype,
                                               collective.elements, collective.bytes, collective.tag);
  auto work = std::make_unique<ThreadsWork>(shared_from_this(), std::move(collective), sequence, ticket);
  pending_.push_back(work.get());
  sequence_ = sequence;
  Slot& slot = slot_of(*work);
  slot.calls[static_cast<size_t>(group_rank_)] = &work->collective;
  group_->progress[static_cast<size_t>(group_rank_)].store(4 * sequence + Phase::kPosted, std::memory_order_release);
  slot.posted.arrive(target_of(*work));
  return work;
}

void ThreadsEndpoint::complete(const ThreadsWork& work) {
  while (!work.is_done) finish_oldest();
}

void ThreadsEndpoint::finish_oldest() {
  ThreadsWork& work = *pending_.front();
  EXPERTMESH_CHECK(!work.is_open, "{}: a call is waited for before the window is closed", work.collective.tag);
  try {
    start_waiting(work);
    run(work);
  } catch (...) {
    fail(work);
    throw;
  }
  finish(work);
}

void ThreadsEndpoint::start_waiting(ThreadsWork& work) {
  work.waiting_since = WaitClock::now();
  job_->ledger(rank_).mark(work.ticket, Ledger::State::kWaiting);
  EXPERTMESH_FAULT_POINT("comm.wait");
}

void ThreadsEndpoint::finish(ThreadsWork& work) {
  work.is_done = true;
  pending_.pop_front();
  job_->ledger(rank_).mark(work.ticket, Ledger::State::kDone);
}

// Within a catch. Peers must not start to read buffers that the caller is about to free.
void ThreadsEndpoint::fail(ThreadsWork& work) {
  if (!job_->is_aborted()) job_->abort(rank_, translate_exception(std::current_exception()));
  leave_failed(work);
}

void ThreadsEndpoint::leave_failed(ThreadsWork& work) {
  work.is_done = true;
  pending_.pop_front();
  job_->ledger(rank_).mark(work.ticket, Ledger::State::kFailed);
  job_->wait_for_readers(*group_, rank_);
}

// The first meet of a window. Until close() or drop() this rank counts as one that reads.
void ThreadsEndpoint::open(ThreadsWork& work) {
  while (pending_.front() != &work) finish_oldest();
  try {
    start_waiting(work);
    wait_for(work, slot_of(work).posted, target_of(work), Phase::kPosted);
    {
      const Reading reading(*this, work);
      verify(work, slot_of(work));
    }
    start_reading(work);
  } catch (...) {
    fail(work);
    throw;
  }
  work.is_open = true;
}

void ThreadsEndpoint::close(ThreadsWork& work) {
  work.is_open = false;
  job_->end_reading(rank_);
  try {
    work.waiting_since = WaitClock::now();
    arrive_and_wait(work, slot_of(work).done, target_of(work), Phase::kFinished);
  } catch (...) {
    fail(work);
    throw;
  }
  finish(work);
}

// This rank unwinds with an open window.
void ThreadsEndpoint::drop(ThreadsWork& work) {
  work.is_open = false;
  job_->end_reading(rank_);
  abandon();
  leave_failed(work);
}

std::span<const Collective* const> ThreadsEndpoint::calls_of(const ThreadsWork& work) const {
  return slot_of(work).calls;
}

void ThreadsEndpoint::run(const ThreadsWork& work) {
  Slot& slot = slot_of(work);
  const uint32_t target = target_of(work);
  wait_for(work, slot.posted, target, Phase::kPosted);
  if (work.collective.op == Op::kAllReduce) return run_all_reduce(work, slot);
  {
    const Reading reading(*this, work);
    verify(work, slot);
    transfer(work, slot);
  }
  arrive_and_wait(work, slot.done, target, Phase::kFinished);
}

void ThreadsEndpoint::transfer(const ThreadsWork& work, const Slot& slot) {
  switch (work.collective.op) {
    case Op::kAllGather:
      return copy_all_gather(slot.calls, group_rank_);
    case Op::kReduceScatter:
      return sum_reduce_scatter(slot.calls, group_rank_);
    case Op::kAllToAll:
      return copy_all_to_all(slot.calls, group_rank_);
    case Op::kBroadcast:
      return copy_broadcast(slot.calls, group_rank_);
    case Op::kAllReduce:
    case Op::kBarrier:
    case Op::kWindow:
      return;
  }
}

void ThreadsEndpoint::run_all_reduce(const ThreadsWork& work, Slot& slot) {
  const bool is_small = work.collective.bytes <= kSmallBytes;
  if (is_small) scratch_.resize(static_cast<size_t>(scratch_bytes(work.collective)));
  {
    const Reading reading(*this, work);
    verify(work, slot);
    if (is_small) {
      reduce_to_scratch(slot.calls, scratch_.data());
    } else {
      reduce_own_slice(slot.calls, group_rank_);
    }
  }
  if (is_small) {
    arrive_and_wait(work, slot.done, target_of(work), Phase::kFinished);
    return write_from_scratch(work.collective, scratch_.data());
  }
  uint32_t& uses = reduce_uses_[(work.sequence - 1) % GroupState::kSlots];
  ++uses;
  arrive_and_wait(work, slot.reduced, static_cast<uint32_t>(uses * group_->members.size()), Phase::kReduced);
  {
    const Reading reading(*this, work);
    copy_reduced_slices(slot.calls, group_rank_);
  }
  arrive_and_wait(work, slot.done, target_of(work), Phase::kFinished);
}

void ThreadsEndpoint::verify(const ThreadsWork& work, const Slot& slot) const {
  const std::string difference = find_difference(slot.calls, group_->members);
  if (difference.empty()) return;
  auto error = mismatch_error(place_of(work), difference);
  job_->abort(rank_, error, group_.get());
  throw error;
}

void ThreadsEndpoint::arrive_and_wait(const ThreadsWork& work, Meet& meet, uint32_t target, Phase phase) {
  group_->progress[static_cast<size_t>(group_rank_)].store(4 * work.sequence + phase, std::memory_order_release);
  meet.arrive(target);
  wait_for(work, meet, target, phase);
}

void ThreadsEndpoint::wait_for(const ThreadsWork& work, Meet& meet, uint32_t target, Phase phase) {
  struct Context {
    const ThreadsEndpoint& endpoint;
    uint64_t needed;
  } const context{*this, 4 * work.sequence + phase};
  const auto is_interrupted = [&context] {
    const ThreadsEndpoint& endpoint = context.endpoint;
    return endpoint.job_->is_aborted() || endpoint.find_left(context.needed) >= 0;
  };
  const auto deadline = work.waiting_since + job_->options().timeout;
  const WaitEnd end = job_->waiter(rank_).wait(meet, target, deadline, is_interrupted);
  if (end == WaitEnd::kReady) return;
  if (end == WaitEnd::kDeadline) throw timeout(work, context.needed);
  if (job_->is_aborted()) throw job_->abort_error(place_of(work), *group_);
  throw left_error(place_of(work), find_left(context.needed));
}

// A member that has returned without coming this far; -1 where there is none.
int ThreadsEndpoint::find_left(uint64_t needed) const {
  if (!job_->has_any_left()) return -1;
  for (size_t index = 0; index < group_->members.size(); ++index) {
    const int member = group_->members[index];
    if (job_->has_left(member) && group_->progress[index].load(std::memory_order_acquire) < needed) return member;
  }
  return -1;
}

base::Error ThreadsEndpoint::timeout(const ThreadsWork& work, uint64_t needed) const {
  std::vector<std::string> missing;
  for (size_t index = 0; index < group_->members.size(); ++index) {
    const int member = group_->members[index];
    if (group_->progress[index].load(std::memory_order_acquire) >= needed) continue;
    missing.push_back(missing_text(member, job_->ledger(member), place_of(work)));
  }
  const std::chrono::duration<double> waited = WaitClock::now() - work.waiting_since;
  return timeout_error(place_of(work), waited.count(), missing);
}

namespace {

class ThreadsWindow : public Window {
 public:
  ThreadsWindow(std::shared_ptr<ThreadsEndpoint> endpoint, std::span<void* const> buffers, std::string_view tag)
      : endpoint_(std::move(endpoint)), work_(endpoint_->post(make_window(buffers, tag))) {
    if (trace_ != nullptr) flight_ = trace_->launch(op_name(Op::kWindow), tag, base::Lane::kExchange, 0);
    const base::Span span(wait_name(base::Lane::kExchange), base::Lane::kExchange, tag);
    endpoint_->open(*work_);
  }
  ThreadsWindow(const ThreadsWindow&) = delete;
  ThreadsWindow& operator=(const ThreadsWindow&) = delete;

  ~ThreadsWindow() override {
    if (work_->is_open) endpoint_->drop(*work_);
  }

  void* buffer(int member, size_t index) const override {
    return endpoint_->calls_of(*work_)[static_cast<size_t>(member)]->window[index];
  }
  void close() override {
    {
      const base::Span span(wait_name(base::Lane::kExchange), base::Lane::kExchange, work_->collective.tag);
      endpoint_->close(*work_);
    }
    if (trace_ != nullptr) trace_->land(flight_);
  }

 private:
  std::shared_ptr<ThreadsEndpoint> endpoint_;
  std::unique_ptr<ThreadsWork> work_;
  base::Trace* trace_ = base::current_trace();
  base::Trace::Flight flight_;
};

class ThreadsGroup : public PostingGroup {
 public:
  ThreadsGroup(std::shared_ptr<ThreadsJob> job, std::shared_ptr<GroupState> state, int group_rank)
      : PostingGroup(state->name, state->members, group_rank),
        endpoint_(std::make_shared<ThreadsEndpoint>(std::move(job), std::move(state), group_rank)) {}

  bool shares_memory() const override { return true; }
  std::unique_ptr<Window> open_window(std::span<void* const> buffers, std::string_view tag) override {
    return std::make_unique<ThreadsWindow>(endpoint_, buffers, tag);
  }

 protected:
  std::unique_ptr<Work> post(Collective collective) override { return endpoint_->post(std::move(collective)); }

 private:
  std::shared_ptr<ThreadsEndpoint> endpoint_;
};

}  // namespace

std::shared_ptr<Group> make_threads_group(std::shared_ptr<ThreadsJob> job, std::shared_ptr<GroupState> state,
                                          int group_rank) {
  return std::make_shared<ThreadsGroup>(std::move(job), std::move(state), group_rank);
}

}  // namespace expertmesh::comm
