// SPDX-License-Identifier: Apache-2.0
// Keys in the store, under the run's prefix:
//   abort       the first cause, written once
//   done/K      rank K ended normally: "GROUP SEQUENCE" lines of its last calls; num_done counts them
//   ended       how many ranks left after an abort
//   state/K     a wait of more than a second: group, sequence, call
//   doing/K     what rank K did last, once a second, by its monitor
#include "comm/c10d/job.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/fault.h"
#include "base/log.h"
#include "comm/c10d/error_text.h"

namespace expertmesh::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchEvery{100};
constexpr milliseconds kPublishEvery{1000};
constexpr milliseconds kCauseArrives{1500};  // after a connection failed
constexpr milliseconds kGoodbye{5000};       // for peers to end as well
constexpr milliseconds kAbortGoodbye{2000};
constexpr milliseconds kPause{20};

WaitClock::time_point now() { return WaitClock::now(); }

// A process that is a zombie has ended: its parent has not asked yet.
bool has_process_ended(int64_t pid) {
  if (kill(static_cast<pid_t>(pid), 0) != 0) return errno == ESRCH;
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(stat, line)) return false;
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'Z' || state == 'X';
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

base::Error dead_error(int rank, const Peer& peer) {
  return base::make_error(base::Code::kPeerLost, "comm/peer_lost", "rank {} (process {}) is gone without a word", rank,
                          peer.pid)
      .hint("If you did not end it, look for the out-of-memory killer in the kernel log.");
}

}  // namespace

ProcessJob::ProcessJob(Launch launch, WorldOptions options, std::unique_ptr<ControlStore> store,
                       std::vector<Peer> peers)
    : launch_(std::move(launch)), options_(std::move(options)), peers_(std::move(peers)), store_(std::move(store)) {
  // Connected before anybody can fail: a connection to a dead server is tried again for the whole set-up time.
  monitor_store_ = store_->clone();
  monitor_ = std::thread([this] { monitor_main(); });
  executor_ = std::make_unique<Executor>([rank = launch_.rank] { base::set_fault_rank(rank); });
}

ProcessJob::~ProcessJob() {
  is_noticed_.store(true);
  executor_.reset();
  try {
    say_goodbye();
  } catch (const std::exception& error) {
    base::log_debug("rank {} left without a goodbye: {}", rank(), error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.notify_all();
  monitor_.join();
}

void ProcessJob::say_goodbye() {
  const bool is_server = rank() == 0 && !launch_.has_agent_store;
  if (!is_aborted() && !is_abandoned_.load()) {
    std::string calls;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, sequence] : finished_) calls += fmt::format("{} {}\n", key, sequence);
    }
    store_->set(fmt::format("done/{}", rank()), calls);
    store_->add("num_done", 1);
    const auto deadline = now() + (is_server ? options_.timeout : std::min(kGoodbye, options_.timeout));
    while (!is_aborted() && store_->add("num_done", 0) < launch_.size && now() < deadline) {
      std::this_thread::sleep_for(kPause);
    }
    if (!is_aborted()) return;
  }
  store_->add("ended", 1);
  const auto deadline = now() + kAbortGoodbye;
  while (is_server && store_->add("ended", 0) + store_->add("num_done", 0) < launch_.size && now() < deadline) {
    std::this_thread::sleep_for(kPause);
  }
}

bool ProcessJob::is_one_host() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.host == peers_[0].host; });
}

// The abort.

void ProcessJob::set_cause(const base::Error& cause) {
  const std::lock_guard lock(mutex_);
  if (cause_) return;
  cause_ = cause;
  aborted_at_ = now();
  is_aborted_.store(true);
}

void ProcessJob::abort(const base::Error& cause) {
  if (is_aborted()) return;
  base::Error named = cause;
  if (!named.rank()) named.on_rank(rank(), cause.coords(), cause.step());
  try {
    const std::string stands = store_->set_once("abort", error_to_json(named));
    set_cause(try_error_from_json(stands).value_or(named));
  } catch (const StoreLost&) {
    set_cause(named);
  }
}

std::optional<base::Error> ProcessJob::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

base::Error ProcessJob::abort_error(const WaitPlace& place) {
  is_noticed_.store(true);
  const auto why = cause();
  if (why && why->topic() == "comm/mismatch") return *why;
  return lost_error(place, why && why->rank() ? *why->rank() : rank(), why);
}

// The monitor.

void ProcessJob::monitor_main() {
  ControlStore& store = *monitor_store_;
  auto next_word = now();
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kWatchEvery, [this] { return is_stopping_; })) {
    lock.unlock();
    try {
      watch(store);
      if (now() >= next_word) {
        store.set(fmt::format("doing/{}", rank()), doing_text(rank(), ledger_));
        next_word = now() + kPublishEvery;
      }
    } catch (const StoreSilent&) {
      if (!is_noticed_.load()) {
        set_cause(base::make_error(base::Code::kTimeout, "comm/timeout",
                                   "{}, which serves {}:{}, has not answered for {:.0f} s", server_name(),
                                   launch_.address, launch_.port,
                                   std::chrono::duration<double>(options_.timeout).count())
                      .hint("Its process hangs, or the network to its host is down.")
                      .on_rank(0));
      }
    } catch (const StoreLost&) {
      if (!is_noticed_.load()) {
        set_cause(base::make_error(base::Code::kPeerLost, "comm/peer_lost",
                                   "the process that serves {}:{} is gone ({})", launch_.address, launch_.port,
                                   server_name())
                      .on_rank(0));
      }
    }
    leave_if_stuck();
    lock.lock();
  }
}

void ProcessJob::watch(ControlStore& store) {
  if (is_aborted()) return;
  if (const auto text = store.try_get("abort")) {
    if (auto cause = try_error_from_json(*text)) set_cause(*cause);
    return;
  }
  look_for_dead_peers(store);
}

bool ProcessJob::is_gone(int peer) const {
  const Peer& other = peers_[static_cast<size_t>(peer)];
  return peer != rank() && other.host == peers_[static_cast<size_t>(rank())].host && has_process_ended(other.pid);
}

void ProcessJob::look_for_dead_peers(ControlStore& store) {
  for (int peer = 0; peer < launch_.size; ++peer) {
    if (!is_gone(peer) || store.try_get(fmt::format("done/{}", peer))) continue;
    // It may have written the cause, and ended, since the look above.
    const auto named = dead_error(peer, peers_[static_cast<size_t>(peer)]).on_rank(peer);
    const std::string stands = store.set_once("abort", error_to_json(named));
    set_cause(try_error_from_json(stands).value_or(named));
    return;
  }
}

void ProcessJob::leave_if_stuck() {
  std::optional<base::Error> why;
  {
    const std::lock_guard lock(mutex_);
    if (!cause_ || is_noticed_.load() || now() < aborted_at_ + options_.stuck_after) return;
    why = cause_;
  }
  if (options_.on_failure) options_.on_failure({*why, {}, {&ledger_}, {rank()}});
  std::fputs((why->text() + "\n").c_str(), stderr);
  base::log_line(base::LogLevel::kError, fmt::format("rank {} did not come back after this; leaving", rank()));
  std::_Exit(static_cast<int>(why->code()));
}

// Waits.

void ProcessJob::check_wait(const Waiting& waiting, WaitClock::time_point since) {
  if (is_aborted()) throw abort_error(waiting.place);
  if (is_abandoned_.load()) throw lost_error(waiting.place, rank(), std::nullopt);
  const auto time = now();
  if (time - since >= options_.timeout) {
    throw timeout(waiting, std::chrono::duration<double>(time - since).count());
  }
  if (time - since < kPublishEvery || time - last_published_ < kPublishEvery) return;
  last_published_ = time;
  try {
    publish_state(waiting);
    if (auto error = find_mismatch(waiting)) throw base::Error(*std::move(error));
    if (auto error = find_left(waiting)) throw base::Error(*std::move(error));
  } catch (const StoreLost& error) {
    base::log_debug("rank {} could not publish its wait: {}", rank(), error.what());  // the monitor reports it
  }
}

void ProcessJob::publish_state(const Waiting& waiting) {
  store_->set(fmt::format("state/{}", rank()),
              fmt::format("{}\n{}\n{}\n", waiting.group_key, waiting.place.sequence, waiting.call));
}

std::optional<base::Error> ProcessJob::find_mismatch(const Waiting& waiting) {
  for (const int member : waiting.members) {
    if (member == rank()) continue;
    const auto text = store_->try_get(fmt::format("state/{}", member));
    if (!text) continue;
    const std::vector<std::string> lines = split_lines(*text);
    if (lines.size() < 3 || lines[0] != waiting.group_key || lines[1] != std::to_string(waiting.place.sequence))
      continue;
    if (lines[2] == waiting.call) continue;
    const bool is_first = rank() < member;
    return mismatch_error(waiting.place, fmt::format("rank {} calls {}, rank {} calls {}", is_first ? rank() : member,
                                                     is_first ? waiting.call : lines[2], is_first ? member : rank(),
                                                     is_first ? lines[2] : waiting.call));
  }
  return std::nullopt;
}

std::optional<base::Error> ProcessJob::find_left(const Waiting& waiting) {
  for (const int member : waiting.members) {
    if (member == rank()) continue;
    const auto text = store_->try_get(fmt::format("done/{}", member));
    if (!text) continue;
    uint64_t finished = 0;
    for (const std::string& line : split_lines(*text)) {
      const size_t space = line.rfind(' ');
      if (space != std::string::npos && line.substr(0, space) == waiting.group_key) {
        finished = std::strtoull(line.c_str() + space, nullptr, 10);
      }
    }
    if (finished < waiting.place.sequence) return left_error(waiting.place, member);
  }
  return std::nullopt;
}

std::optional<base::Error> ProcessJob::find_dead(const Waiting& waiting) {
  for (const int member : waiting.members) {
    if (is_gone(member)) return dead_error(member, peers_[static_cast<size_t>(member)]).on_rank(member);
  }
  return std::nullopt;
}

base::Error ProcessJob::explain(const Waiting& waiting, const std::string& connection_text) {
  const auto deadline = now() + kCauseArrives;
  try {
    publish_state(waiting);
    while (now() < deadline) {
      if (is_aborted()) return abort_error(waiting.place);
      if (auto error = find_mismatch(waiting)) return *std::move(error);
      if (auto error = find_left(waiting)) return *std::move(error);
      if (now() > deadline - kCauseArrives / 2) {
        if (auto error = find_dead(waiting)) return *std::move(error);
      }
      std::this_thread::sleep_for(kPause);
    }
  } catch (const StoreLost&) {
    // A killed process loses its connections a moment before it counts as ended.
    while (now() < deadline && !is_aborted()) {
      if (const auto dead = find_dead(waiting)) return *dead;
      std::this_thread::sleep_for(kPause);
    }
  }
  if (is_aborted()) return abort_error(waiting.place);
  return base::make_error(base::Code::kPeerLost, "comm/peer_lost", "{} but a connection failed: {}",
                          waits_text(waiting.place), connection_text)
      .hint("Another rank has ended, or the network between the hosts is down.");
}

base::Error ProcessJob::mismatch(const Waiting& waiting, int stranger) {
  const auto deadline = now() + kCauseArrives;
  try {
    publish_state(waiting);
    while (now() < deadline) {
      if (is_aborted()) return abort_error(waiting.place);
      if (auto error = find_mismatch(waiting)) return *std::move(error);
      std::this_thread::sleep_for(kPause);
    }
  } catch (const StoreLost& error) {
    base::log_debug("rank {} could not ask for the other call: {}", rank(), error.what());
  }
  return mismatch_error(waiting.place,
                        fmt::format("rank {} calls {}, rank {} calls another", rank(), waiting.call, stranger));
}

base::Error ProcessJob::timeout(const Waiting& waiting, double seconds) {
  std::vector<std::string> missing;
  try {
    publish_state(waiting);
    for (const int member : waiting.members) {
      if (member == rank()) continue;
      const auto state = store_->try_get(fmt::format("state/{}", member));
      const std::vector<std::string> lines = split_lines(state.value_or(""));
      const bool is_here =
          lines.size() > 1 && lines[0] == waiting.group_key && lines[1] == std::to_string(waiting.place.sequence);
      if (is_here) continue;
      const auto doing = store_->try_get(fmt::format("doing/{}", member));
      missing.push_back(fmt::format("{} and never entered #{}",
                                    doing.value_or(fmt::format("rank {} gives no sign", member)),
                                    waiting.place.sequence));
    }
  } catch (const StoreLost&) {
    missing.push_back(fmt::format("{}, which serves the store, does not answer", server_name()));
  }
  if (missing.empty()) missing.emplace_back("all ranks of the axis wait here");
  return timeout_error(waiting.place, seconds, missing);
}

// Connections and memory.

std::shared_ptr<Wire> ProcessJob::wire(const std::vector<int>& members, int group_rank, const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = wires_.find(members);
    if (known != wires_.end()) return known->second;
  }
  // Ours end first, with better words than Gloo's.
  const auto limit = options_.timeout + std::chrono::seconds(60);
  auto made = std::make_shared<Wire>(*store_, key, group_rank, static_cast<int>(members.size()), is_one_host(), limit);
  const std::lock_guard lock(mutex_);
  return wires_.emplace(members, std::move(made)).first->second;
}

void ProcessJob::note_finished(const std::string& group_key, uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  finished_[group_key] = sequence;
}

namespace {

WireBuffer& grown(std::unique_ptr<WireBuffer>& buffer, int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 4096);
  if (!buffer || buffer->size() < bytes) {
    buffer.reset();
    buffer = std::make_unique<WireBuffer>(bytes);
  }
  return *buffer;
}

}  // namespace

WireBuffer& ProcessJob::send_buffer(int64_t bytes) { return grown(send_, bytes); }
WireBuffer& ProcessJob::recv_buffer(int64_t bytes) { return grown(recv_, bytes); }
WireBuffer& ProcessJob::frame_buffer(int64_t bytes) { return grown(frames_, bytes); }

}  // namespace expertmesh::comm
