// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/job.h"

#include <algorithm>

namespace expertmesh::comm {
namespace {

bool is_primary(const base::Error& error) {
  return error.code() != base::Code::kPeerLost && error.code() != base::Code::kTimeout;
}

bool is_same(const base::Error& a, const base::Error& b) {
  return a.rank() == b.rank() && a.code() == b.code() && a.message() == b.message();
}

}  // namespace

GroupState::GroupState(std::string axis, std::vector<int> ranks)
    : name(std::move(axis)), members(std::move(ranks)), progress(members.size()) {
  for (Slot& slot : slots) slot.calls.resize(members.size());
}

ThreadsJob::ThreadsJob(int size, WorldOptions options) : options_(std::move(options)) {
  options_.timeout = std::min(options_.timeout, kLongestTimeout);
  const int spins = spins_for(size);
  for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>(spins));
}

std::shared_ptr<GroupState> ThreadsJob::group(uint64_t call, size_t index, const std::string& name,
                                              const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  auto& state = groups_[{call, index}];
  if (!state) state = std::make_shared<GroupState>(name, members);
  return state;
}

void ThreadsJob::set_aborted(int rank) {
  aborted_by_ = rank;
  aborted_at_ = WaitClock::now();
  is_aborted_.store(true, std::memory_order_seq_cst);
}

void ThreadsJob::wake_all() {
  for (const auto& rank : ranks_) rank->waiter.wake();
  ended_.notify_all();
}

void ThreadsJob::claim_abort(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted()) return;
    set_aborted(rank);
  }
  wake_all();
}

void ThreadsJob::abort(int rank, const base::Error& cause, const GroupState* diverged) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_first = !is_aborted();
    if (is_first || (aborted_by_ == rank && !cause_)) {
      cause_ = cause;
      diverged_ = diverged;
    }
    if (!is_first) return;
    set_aborted(rank);
  }
  wake_all();
}

std::optional<base::Error> ThreadsJob::abort_cause() const {
  const std::lock_guard lock(mutex_);
  auto cause = cause_;
  if (cause && !cause->rank()) cause->on_rank(aborted_by_, cause->coords(), cause->step());
  return cause;
}

base::Error ThreadsJob::abort_error(const WaitPlace& place, const GroupState& group) const {
  const std::lock_guard lock(mutex_);
  if (cause_ && diverged_ == &group) return *cause_;
  return lost_error(place, aborted_by_, cause_);
}

void ThreadsJob::wait_for_readers(const GroupState& group, int rank) const {
  for (const int member : group.members) {
    if (member == rank) continue;
    const std::atomic<bool>& is_reading = ranks_[static_cast<size_t>(member)]->is_reading;
    Waiter::poll_until([&is_reading] { return !is_reading.load(std::memory_order_seq_cst); });
  }
}

void ThreadsJob::leave(int rank) {
  ranks_[static_cast<size_t>(rank)]->has_left.store(true, std::memory_order_release);
  num_left_.fetch_add(1, std::memory_order_release);
  wake_all();
}

void ThreadsJob::fail(int rank, base::Error error) {
  if (!error.rank()) error.on_rank(rank, error.coords(), error.step());
  {
    const std::lock_guard lock(mutex_);
    failures_.push_back(error);
  }
  abort(rank, error);
}

void ThreadsJob::thread_ended() {
  {
    const std::lock_guard lock(mutex_);
    ++num_ended_;
  }
  ended_.notify_all();
}

bool ThreadsJob::wait_for_threads() {
  std::unique_lock lock(mutex_);
  const auto all_ended = [this] { return num_ended_ == size(); };
  ended_.wait(lock, [&] { return all_ended() || is_aborted(); });
  if (all_ended()) return true;
  return ended_.wait_until(lock, aborted_at_ + options_.stuck_after, all_ended);
}

std::optional<FailureReport> ThreadsJob::failure() {
  const std::lock_guard lock(mutex_);
  std::vector<base::Error> all;
  if (cause_) {
    all.push_back(*cause_);
    if (!cause_->rank()) all.back().on_rank(aborted_by_, cause_->coords(), cause_->step());
  }
  for (const base::Error& error : failures_) {
    if (!cause_ || !is_same(error, all.front())) all.push_back(error);
  }
  if (all.empty() && is_aborted()) {
    all.push_back(
        base::make_error(base::Code::kInternal, "internal", "rank {} failed and has not said why", aborted_by_)
            .on_rank(aborted_by_));
  }
  if (all.empty()) return std::nullopt;
  const auto first_primary = std::find_if(all.begin(), all.end(), is_primary);
  if (first_primary != all.end()) std::rotate(all.begin(), first_primary, first_primary + 1);
  FailureReport report{all.front(), {all.begin() + 1, all.end()}, {}, {}};
  for (int rank = 0; rank < size(); ++rank) {
    report.ledgers.push_back(&ranks_[static_cast<size_t>(rank)]->ledger);
    report.ranks.push_back(rank);
  }
  return report;
}

}  // namespace expertmesh::comm
