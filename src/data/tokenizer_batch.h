// SPDX-License-Identifier: Apache-2.0
// Threads that share the texts of one call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace expertmesh::data {

// Threads that take texts until none is left. The error of the first bad text wins, whichever thread met it.
class BatchRun {
 public:
  explicit BatchRun(size_t count) : count_(count), failed_at_(count) {}

  // Calls work(first, last, at) for parts of the texts; it keeps `at` at the text it is working on. At most `threads`.
  template <typename Work>
  void run(size_t threads, Work work) {
    threads = std::clamp<size_t>(threads, 1, std::max<size_t>(1, (count_ + kTextsAtOnce - 1) / kTextsAtOnce));
    std::vector<std::jthread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back([&] { take_all(work); });
    take_all(work);
    others.clear();  // joins
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr size_t kTextsAtOnce = 16;

  template <typename Work>
  void take_all(Work& work) {
    while (true) {
      const size_t first = next_.fetch_add(kTextsAtOnce);
      if (first >= count_) return;
      size_t at = first;
      try {
        work(first, std::min(first + kTextsAtOnce, count_), at);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (at < failed_at_) {
          failed_at_ = at;
          error_ = std::current_exception();
        }
        next_.store(count_);
        return;
      }
    }
  }

  size_t count_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  size_t failed_at_;
  std::exception_ptr error_;
};

}  // namespace expertmesh::data
