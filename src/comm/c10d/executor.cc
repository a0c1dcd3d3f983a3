// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/executor.h"

namespace expertmesh::comm {

Executor::Executor(std::function<void()> on_start)
    : on_start_(std::move(on_start)), helper_([this] { helper_main(); }) {}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  helper_.join();
}

void Executor::submit(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Executor::run_front(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = std::move(queue_.front());
  queue_.pop_front();
  is_running_ = true;
  lock.unlock();
  try {
    task->run();
  } catch (...) {
    task->error = std::current_exception();
  }
  task->run = nullptr;
  lock.lock();
  task->is_done = true;
  is_running_ = false;
  changed_.notify_all();
}

void Executor::wait(Task& task) {
  std::unique_lock lock(mutex_);
  while (!task.is_done) {
    if (!is_running_ && !queue_.empty()) {
      run_front(lock);
    } else {
      changed_.wait(lock);
    }
  }
  if (task.error) std::rethrow_exception(task.error);
}

void Executor::helper_main() {
  on_start_();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!is_running_ && !queue_.empty()) {
      run_front(lock);
    } else if (is_stopping_ && queue_.empty() && !is_running_) {
      return;
    } else {
      changed_.wait(lock);
    }
  }
}

}  // namespace expertmesh::comm
