// SPDX-License-Identifier: Apache-2.0
// Rank threads: started here, supervised here, and joined unless one is stuck after an abort.
#include <cstdlib>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "comm/partition.h"
#include "comm/rank_errors.h"
#include "comm/single.h"
#include "comm/threads/group.h"
#include "comm/threads/job.h"
#include "comm/world.h"

namespace expertmesh::comm {
namespace {

class ThreadsWorld : public World {
 public:
  ThreadsWorld(std::shared_ptr<ThreadsJob> job, int rank) : job_(std::move(job)), rank_(rank) {
    std::vector<int> everyone;
    everyone.reserve(static_cast<size_t>(size()));
    for (int member = 0; member < job_->size(); ++member) everyone.push_back(member);
    all_ = make(0, "world", {everyone});
  }

  int rank() const override { return rank_; }
  int size() const override { return job_->size(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return job_->size(); }
  std::string_view engine() const override { return "threads"; }
  bool shares_memory() const override { return true; }
  Group& all() override { return *all_; }

  std::shared_ptr<Group> make_group(std::string name, const std::vector<std::vector<int>>& groups) override {
    find_own_group(groups, size(), rank_, name);
    all_->barrier(fmt::format("make_group {} {:016x}", name, partition_hash(groups, name)));
    return make(++num_partitions_, name, groups);
  }

  void abort(const base::Error& cause) override { job_->abort(rank_, cause); }
  std::optional<base::Error> abort_cause() const override { return job_->abort_cause(); }
  Ledger& ledger() override { return job_->ledger(rank_); }

 private:
  std::shared_ptr<Group> make(uint64_t call, const std::string& name, const std::vector<std::vector<int>>& groups) {
    const OwnGroup own = find_own_group(groups, size(), rank_, name);
    const std::vector<int>& members = groups[own.index];
    if (members.size() == 1) return make_single_group(name, rank_);
    return make_threads_group(job_, job_->group(call, own.index, name, members), own.rank);
  }

  std::shared_ptr<ThreadsJob> job_;
  int rank_;
  uint64_t num_partitions_ = 0;
  std::shared_ptr<Group> all_;
};

void rank_main(const std::shared_ptr<ThreadsJob>& job, int rank, const std::function<void(World&)>& body) {
  base::set_fault_rank(rank);
  try {
    {
      ThreadsWorld world(job, rank);
      body(world);
    }
    job->leave(rank);
  } catch (...) {
    job->fail(rank, translate_exception(std::current_exception()));
  }
  job->thread_ended();
}

// Threads cannot be killed: report, and end the process.
[[noreturn]] void leave_stuck(const FailureReport& report, const WorldOptions& options,
                              const std::function<void(const base::Error&)>& on_stuck) noexcept {
  if (options.on_failure) options.on_failure(report);
  if (on_stuck) on_stuck(report.cause);
  base::log_line(base::LogLevel::kError, report.cause.text());
  base::log_line(base::LogLevel::kError, "a rank did not come back after this; leaving the process");
  std::_Exit(static_cast<int>(report.cause.code()));
}

}  // namespace

void run_threads(int size, const WorldOptions& options, const std::function<void(World&)>& body,
                 const std::function<void(const base::Error&)>& on_stuck) {
  EXPERTMESH_CHECK(size >= 1, "{} ranks", size);
  const auto job = std::make_shared<ThreadsJob>(size, options);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    try {
      threads.emplace_back([job, rank, &body] { rank_main(job, rank, body); });
    } catch (const std::system_error& error) {
      job->fail(rank, base::make_error(base::Code::kResources, "resources/threads",
                                       "cannot start the thread of rank {}: {}", rank, error.code().message())
                          .hint("Use fewer ranks or raise the limit on threads (ulimit -u)."));
      for (int missing = rank; missing < size; ++missing) job->thread_ended();
      break;
    }
  }

  const bool is_stuck = !job->wait_for_threads();
  const auto report = job->failure();
  if (is_stuck) leave_stuck(*report, options, on_stuck);
  for (std::thread& thread : threads) thread.join();
  if (!report) return;
  if (options.on_failure) options.on_failure(*report);
  throw report->cause;
}

}  // namespace expertmesh::comm
