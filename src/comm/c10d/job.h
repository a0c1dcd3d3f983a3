// SPDX-License-Identifier: Apache-2.0
// What one process knows of its job: its peers, the abort that all processes share through the store, and the monitor.
// The first cause written to the store is the job's; every process sees it within a fraction of a second, ends its
// waits, and leaves by itself where its main thread does not come back in time. Threads: any. Errors: kPeerLost,
// kTimeout, kInternal as in group.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/c10d/executor.h"
#include "comm/c10d/store.h"
#include "comm/c10d/wire.h"
#include "comm/launcher.h"
#include "comm/wait.h"
#include "comm/wait_report.h"
#include "comm/world.h"

namespace expertmesh::comm {

// A process of the job, as it announced itself.
struct Peer {
  std::string host;  // equal for processes that see each other's process ids
  int64_t pid = 0;
};

// A call that this process waits in.
struct Waiting {
  WaitPlace place;
  const std::string& group_key;
  const std::vector<int>& members;
  std::string call;  // op, tag and sizes in words
};

class ProcessJob {
 public:
  ProcessJob(Launch launch, WorldOptions options, std::unique_ptr<ControlStore> store, std::vector<Peer> peers);
  // Tells the peers that this rank is done, and stays as long as they need the store that it serves.
  ~ProcessJob();
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;

  const Launch& launch() const { return launch_; }
  int rank() const { return launch_.rank; }
  const WorldOptions& options() const { return options_; }
  bool is_one_host() const;
  ControlStore& store() { return *store_; }
  Ledger& ledger() { return ledger_; }
  Executor& executor() { return *executor_; }

  bool is_aborted() const { return is_aborted_.load(); }
  void abort(const base::Error& cause);
  std::optional<base::Error> cause() const;
  // What a wait throws after an abort; the main thread has seen it then.
  base::Error abort_error(const WaitPlace& place);
  // This rank unwinds: its waits end now, the cause follows.
  void abandon() { is_abandoned_.store(true); }
  bool is_abandoned() const { return is_abandoned_.load(); }

  // Called in every wait, about every 50 ms: throws where the wait must end.
  void check_wait(const Waiting& waiting, WaitClock::time_point since);
  // Why a connection failed: waits a moment for the cause to arrive.
  base::Error explain(const Waiting& waiting, const std::string& connection_text);
  // A peer's message is of another call.
  base::Error mismatch(const Waiting& waiting, int stranger);

  // The connections of a group; groups of the same members share them.
  std::shared_ptr<Wire> wire(const std::vector<int>& members, int group_rank, const std::string& key);
  // Counted at the end of every call, for peers that wait for more.
  void note_finished(const std::string& group_key, uint64_t sequence);
  // Grown as needed; used by one task at a time.
  WireBuffer& send_buffer(int64_t bytes);
  WireBuffer& recv_buffer(int64_t bytes);
  WireBuffer& frame_buffer(int64_t bytes);

 private:
  void monitor_main();
  void watch(ControlStore& store);
  void look_for_dead_peers(ControlStore& store);
  void set_cause(const base::Error& cause);
  void leave_if_stuck();
  bool is_gone(int peer) const;
  void publish_state(const Waiting& waiting);
  std::optional<base::Error> find_mismatch(const Waiting& waiting);
  std::optional<base::Error> find_left(const Waiting& waiting);
  std::optional<base::Error> find_dead(const Waiting& waiting);
  base::Error timeout(const Waiting& waiting, double seconds);
  void say_goodbye();
  std::string_view server_name() const { return launch_.has_agent_store ? "the launcher's agent" : "rank 0"; }

  const Launch launch_;
  const WorldOptions options_;
  const std::vector<Peer> peers_;
  std::unique_ptr<ControlStore> store_;
  std::unique_ptr<ControlStore> monitor_store_;  // the monitor's own connection
  Ledger ledger_;

  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> is_abandoned_{false};
  std::atomic<bool> is_noticed_{false};  // the main thread has seen the abort

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stopping_;
  bool is_stopping_ = false;
  std::optional<base::Error> cause_;
  WaitClock::time_point aborted_at_;
  std::map<std::string, uint64_t> finished_;
  std::map<std::vector<int>, std::shared_ptr<Wire>> wires_;

  WaitClock::time_point last_published_;  // by the running task
  std::unique_ptr<WireBuffer> send_, recv_, frames_;
  std::thread monitor_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace expertmesh::comm
