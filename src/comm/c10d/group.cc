// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/group.h"

#include <exception>

#include "base/fault.h"
#include "comm/c10d/packing.h"
#include "comm/collective.h"
#include "comm/rank_errors.h"

namespace expertmesh::comm {
namespace {

// The end of a group that tasks hold on to.
struct Endpoint {
  std::shared_ptr<ProcessJob> job;
  std::shared_ptr<Wire> wire;
  std::string name;
  std::string key;
  std::vector<int> members;
  int group_rank = 0;
  uint64_t sequence = 0;
};

struct Call {
  std::shared_ptr<Endpoint> endpoint;
  Collective collective;
  uint64_t sequence = 0;
  Ledger::Ticket ticket = 0;

  Waiting waiting() const {
    return {{endpoint->name, endpoint->job->rank(), collective.op, sequence, collective.tag,
             endpoint->job->ledger().step()},
            endpoint->key,
            endpoint->members,
            describe(collective)};
  }
};

void move_bytes(Wire& wire, const Collective& collective, const Layout& layout, WireBuffer& send, WireBuffer& recv,
                const Tick& tick) {
  switch (layout.route) {
    case Route::kAllGather:
      return wire.all_gather(send, layout.send[0], recv, tick);
    case Route::kAllToAll:
      return wire.all_to_all(send, layout.send, recv, layout.recv, tick);
    case Route::kBroadcast:
      return wire.broadcast(recv, layout.send[0], collective.root, tick);
  }
}

// Returns true where the frames carried everything and the result is in place.
bool exchange_frames(const Call& call, const Waiting& waiting, const Layout& layout, const Tick& tick) {
  const Endpoint& endpoint = *call.endpoint;
  ProcessJob& job = *endpoint.job;
  const int size = static_cast<int>(endpoint.members.size());
  const std::vector<int64_t> counts(endpoint.members.size(), kFrameBytes);
  WireBuffer& send = job.send_buffer(size * kFrameBytes);
  WireBuffer& frames = job.frame_buffer(size * kFrameBytes);
  write_frames(call.collective, call.sequence, layout, endpoint.group_rank, send.data());
  endpoint.wire->all_to_all(send, counts, frames, counts, tick);
  if (const auto stranger = find_stranger(call.collective, call.sequence, size, frames.data())) {
    const int from = endpoint.members[static_cast<size_t>(stranger->from)];
    if (stranger->is_other_call) throw job.mismatch(waiting, from);
    throw mismatch_error(waiting.place,
                         fmt::format("in {} rank {} sends {} rows to rank {}, which expects {}", waiting.call, from,
                                     stranger->sent_rows, job.rank(), stranger->expected_rows))
        .hint("Agree on the counts first (exchange_counts).");
  }
  if (!is_all_in_frames(size, frames.data())) return false;
  WireBuffer& recv = job.recv_buffer(layout.recv_total());
  read_frames(call.collective, layout, frames.data(), recv.data());
  unpack(call.collective, layout, endpoint.group_rank, recv.data());
  return true;
}

void exchange(const Call& call, const Waiting& waiting, const Tick& tick) {
  const Endpoint& endpoint = *call.endpoint;
  ProcessJob& job = *endpoint.job;
  const int size = static_cast<int>(endpoint.members.size());
  const int rank = endpoint.group_rank;

  const Layout layout = layout_of(call.collective, size, rank);
  if (exchange_frames(call, waiting, layout, tick)) return;
  WireBuffer& recv = job.recv_buffer(layout.recv_total());
  // A broadcast has one buffer: the root's message, everybody's result.
  WireBuffer& send = layout.route == Route::kBroadcast ? recv : job.send_buffer(layout.send_total());
  pack(call.collective, layout, rank, send.data());
  move_bytes(*endpoint.wire, call.collective, layout, send, recv, tick);
  unpack(call.collective, layout, rank, recv.data());
  if (!is_two_step(call.collective, size)) return;

  const Layout second = second_layout(call.collective, size);
  WireBuffer& sums = job.send_buffer(second.send_total());
  WireBuffer& all_sums = job.recv_buffer(second.recv_total());
  pack_second(call.collective, second, rank, sums.data());
  move_bytes(*endpoint.wire, call.collective, second, sums, all_sums, tick);
  unpack_second(call.collective, second, rank, all_sums.data());
}

void run_call(const Call& call) {
  ProcessJob& job = *call.endpoint->job;
  const Waiting waiting = call.waiting();
  const auto since = WaitClock::now();
  job.ledger().mark(call.ticket, Ledger::State::kWaiting);
  try {
    EXPERTMESH_FAULT_POINT("comm.wait");
    if (job.is_aborted()) throw job.abort_error(waiting.place);
    try {
      exchange(call, waiting, [&] { job.check_wait(waiting, since); });
    } catch (const WireLost& error) {
      throw job.explain(waiting, error.what());
    }
  } catch (...) {
    job.ledger().mark(call.ticket, Ledger::State::kFailed);
    // Every rank must end its waits, also those that this one does not take part in.
    if (!job.is_abandoned()) job.abort(translate_exception(std::current_exception()));
    throw;
  }
  job.note_finished(call.endpoint->key, call.sequence);
  job.ledger().mark(call.ticket, Ledger::State::kDone);
}

class ProcessWork : public Work {
 public:
  ProcessWork(std::shared_ptr<ProcessJob> job, std::shared_ptr<Executor::Task> task)
      : job_(std::move(job)), task_(std::move(task)) {}
  ProcessWork(const ProcessWork&) = delete;
  ProcessWork& operator=(const ProcessWork&) = delete;

  // The task reads the caller's buffers: it must have ended. A rank that unwinds does not wait for its peers.
  ~ProcessWork() override {
    if (is_waited_) return;
    if (std::uncaught_exceptions() > exceptions_) job_->abandon();
    try {
      job_->executor().wait(*task_);
    } catch (...) {
      // The job is aborted by now, and whoever waits next reports it.
      is_waited_ = true;
    }
  }

  void wait() override {
    if (is_waited_) return;
    is_waited_ = true;
    job_->executor().wait(*task_);
  }

 private:
  std::shared_ptr<ProcessJob> job_;
  std::shared_ptr<Executor::Task> task_;
  bool is_waited_ = false;
  const int exceptions_ = std::uncaught_exceptions();
};

class ProcessGroup : public PostingGroup {
 public:
  explicit ProcessGroup(std::shared_ptr<Endpoint> endpoint)
      : PostingGroup(endpoint->name, endpoint->members, endpoint->group_rank), endpoint_(std::move(endpoint)) {}

 protected:
  std::unique_ptr<Work> post(Collective collective) override {
    EXPERTMESH_FAULT_POINT("comm.post");
    ProcessJob& job = *endpoint_->job;
    const uint64_t sequence = endpoint_->sequence + 1;
    if (job.is_aborted()) {
      throw job.abort_error({endpoint_->name, job.rank(), collective.op, sequence, collective.tag});
    }
    const auto ticket = job.ledger().post(endpoint_->name, sequence, collective.op, collective.dtype,
                                          collective.elements, collective.bytes, collective.tag);
    endpoint_->sequence = sequence;
    const auto call = std::make_shared<Call>(Call{endpoint_, std::move(collective), sequence, ticket});
    auto task = std::make_shared<Executor::Task>([call] { run_call(*call); });
    auto work = std::make_unique<ProcessWork>(endpoint_->job, task);
    job.executor().submit(std::move(task));
    return work;
  }

 private:
  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace

std::shared_ptr<Group> make_process_group(std::shared_ptr<ProcessJob> job, std::string name, const std::string& key,
                                          std::vector<int> members, int group_rank) {
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->wire = job->wire(members, group_rank, "wire/" + key);
  endpoint->job = std::move(job);
  endpoint->name = std::move(name);
  endpoint->key = key;
  endpoint->members = std::move(members);
  endpoint->group_rank = group_rank;
  return std::make_shared<ProcessGroup>(std::move(endpoint));
}

}  // namespace expertmesh::comm
