// SPDX-License-Identifier: Apache-2.0
// Runs tasks one at a time in the order they were submitted: on a helper thread, or on a thread that waits for one.
// Threads: any submits and waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace expertmesh::comm {

class Executor {
 public:
  struct Task {
    explicit Task(std::function<void()> work) : run(std::move(work)) {}
    std::function<void()> run;
    bool is_done = false;
    std::exception_ptr error;
  };

  // `on_start` runs first on the helper thread.
  explicit Executor(std::function<void()> on_start);
  // Runs what is left.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void submit(std::shared_ptr<Task> task);
  // Returns when the task has run; throws what it threw.
  void wait(Task& task);

 private:
  void helper_main();
  void run_front(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  std::function<void()> on_start_;
  std::thread helper_;
};

}  // namespace expertmesh::comm
