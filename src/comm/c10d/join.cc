// SPDX-License-Identifier: Apache-2.0
// Joining: find the own place in the environment, meet the others in the store, connect.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/check.h"
#include "base/json.h"
#include "comm/c10d/error_text.h"
#include "comm/c10d/group.h"
#include "comm/c10d/job.h"
#include "comm/c10d/translate.h"
#include "comm/partition.h"
#include "comm/single.h"

namespace expertmesh::comm {
namespace {

using base::Code;
using base::make_error;

// The store answers at once unless its process hangs; on a busy machine that can take a while.
constexpr std::chrono::seconds kShortestAnswer{5};
constexpr std::chrono::milliseconds kRefusalIsRead{1000};

// Processes with equal names see each other's process ids.
std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
  return fmt::format("{} {}", name, space);
}

std::string announcement(const Launch& launch) {
  base::Json::Object object;
  object.emplace_back("host", host_name());
  object.emplace_back("pid", static_cast<int64_t>(getpid()));
  object.emplace_back("size", launch.size);
  return base::dump_json(base::Json(std::move(object)));
}

// A rank that finds a fault while they meet tells the others; the one that serves the store stays until they have read
// it.
[[noreturn]] void refuse(const Launch& launch, ControlStore& store, const base::Error& error) {
  store.set_once("abort", error_to_json(error));
  if (launch.rank == 0 && !launch.has_agent_store) std::this_thread::sleep_for(kRefusalIsRead);
  throw base::Error(error);
}

void check_refused(ControlStore& store) {
  if (const auto text = store.try_get("abort")) {
    if (auto error = try_error_from_json(*text)) throw base::Error(*std::move(error));
  }
}

Peer read_announcement(const Launch& launch, ControlStore& store, int peer, const std::string& text) {
  const base::Json json = base::parse_json(text);
  const int64_t size = json.find("size")->try_int64().value_or(0);
  if (size != launch.size) {
    refuse(launch, store,
           make_error(Code::kCommSetup, "comm/size", "rank {} was told {} ranks, rank {} was told {}", launch.rank,
                      launch.size, peer, size)
               .hint("Start all ranks with the same number of ranks."));
  }
  return {*json.find("host")->try_string(), json.find("pid")->try_int64().value_or(0)};
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  constexpr size_t kShown = 16;
  for (size_t at = 0; at < std::min(kShown, ranks.size()); ++at) {
    text += fmt::format("{}{}", at > 0 ? ", " : "", ranks[at]);
  }
  if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
  return text;
}

// Announces this rank and waits for the others.
std::vector<Peer> meet_all(const Launch& launch, const WorldOptions& options, ControlStore& store) {
  const auto start = WaitClock::now();
  const std::string mine = announcement(launch);
  if (store.set_once(fmt::format("here/{}", launch.rank), mine) != mine) {
    throw make_error(Code::kCommSetup, "comm/rank", "two processes are rank {} of {}", launch.rank, launch.size)
        .hint("Every process needs a rank of its own (RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK).");
  }
  std::vector<Peer> peers(static_cast<size_t>(launch.size));
  std::vector<int> missing;
  missing.reserve(peers.size());
  for (int peer = 0; peer < launch.size; ++peer) missing.push_back(peer);
  for (;;) {
    check_refused(store);
    std::vector<int> still;
    for (const int peer : missing) {
      if (const auto text = store.try_get(fmt::format("here/{}", peer))) {
        peers[static_cast<size_t>(peer)] = read_announcement(launch, store, peer, *text);
      } else {
        still.push_back(peer);
      }
    }
    missing = std::move(still);
    if (missing.empty()) return peers;
    if (WaitClock::now() - start > options.setup_timeout) {
      refuse(launch, store,
             make_error(Code::kCommSetup, "comm/missing", "{} of {} did not appear within {:.1f} s",
                        list_ranks(missing), launch.size, std::chrono::duration<double>(options.setup_timeout).count())
                 .hint("Look at the output of the missing ranks: they ended, or were never started."));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// This rank's place among the ranks of its host, where the launcher has not said.
void fill_local(Launch& launch, const std::vector<Peer>& peers) {
  int before = 0;
  int all = 0;
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    if (peers[peer].host != peers[static_cast<size_t>(launch.rank)].host) continue;
    ++all;
    if (static_cast<int>(peer) < launch.rank) ++before;
  }
  if (launch.local_rank < 0) launch.local_rank = before;
  if (launch.local_size < 0) launch.local_size = all;
}

class ProcessWorld : public World {
 public:
  explicit ProcessWorld(std::shared_ptr<ProcessJob> job) : job_(std::move(job)) {
    std::vector<int> everyone;
    everyone.reserve(static_cast<size_t>(size()));
    for (int member = 0; member < size(); ++member) everyone.push_back(member);
    all_ = make_process_group(job_, "world", "0/0", std::move(everyone), rank());
  }

  int rank() const override { return job_->rank(); }
  int size() const override { return job_->launch().size; }
  int local_rank() const override { return job_->launch().local_rank; }
  int local_size() const override { return job_->launch().local_size; }
  std::string_view engine() const override { return "gloo"; }
  bool shares_memory() const override { return false; }
  Group& all() override { return *all_; }

  std::shared_ptr<Group> make_group(std::string name, const std::vector<std::vector<int>>& groups) override {
    const OwnGroup own = find_own_group(groups, size(), rank(), name);
    all_->barrier(fmt::format("make_group {} {:016x}", name, partition_hash(groups, name)));
    ++num_partitions_;
    const std::vector<int>& members = groups[own.index];
    if (members.size() == 1) return make_single_group(std::move(name), rank());
    return make_process_group(job_, std::move(name), fmt::format("{}/{}", num_partitions_, own.index), members,
                              own.rank);
  }

  void abort(const base::Error& cause) override { job_->abort(cause); }
  std::optional<base::Error> abort_cause() const override { return job_->cause(); }
  Ledger& ledger() override { return job_->ledger(); }

 private:
  std::shared_ptr<ProcessJob> job_;
  std::shared_ptr<Group> all_;
  uint64_t num_partitions_ = 0;
};

}  // namespace

std::unique_ptr<World> try_join_launcher(const WorldOptions& given) {
  WorldOptions options = given;
  options.timeout = std::min(options.timeout, kLongestTimeout);
  register_c10_translator();
  auto launch = find_launch([](const char* name) { return std::getenv(name); });
  if (!launch) return nullptr;
  if (launch->size == 1) return make_single_world(options);
  // libtorch warns about every retry; what matters is reported as our error.
  FLAGS_caffe2_log_level = 3;
  // Writing to a peer that is gone is an error to report, not the end of the process.
  struct sigaction action{};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
  try {
    auto store = ControlStore::connect(*launch, options.setup_timeout);
    std::vector<Peer> peers = meet_all(*launch, options, *store);
    fill_local(*launch, peers);
    store->limit_answers(std::max<std::chrono::milliseconds>(options.timeout, kShortestAnswer));
    auto job = std::make_shared<ProcessJob>(*launch, options, std::move(store), std::move(peers));
    return std::make_unique<ProcessWorld>(std::move(job));
  } catch (const StoreLost& error) {
    throw make_error(Code::kCommSetup, "comm/store", "rank {} lost the store at {}:{}: {}", launch->rank,
                     launch->address, launch->port, error.what())
        .hint("Look at the output of rank 0: it may have ended.");
  }
}

}  // namespace expertmesh::comm
