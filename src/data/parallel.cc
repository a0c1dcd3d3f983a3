// SPDX-License-Identifier: Apache-2.0
#include "data/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace expertmesh::data {

void parallel_pieces(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::atomic<size_t> failed{count};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    while (true) {
      const size_t index = next++;
      if (index >= count || index > failed) return;
      try {
        body(index);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (index < failed) {
          failed = index;
          error = std::current_exception();
        }
      }
    }
  };
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads) : std::thread::hardware_concurrency();
  const size_t workers = std::clamp<size_t>(wanted, 1, std::max<size_t>(count, 1));
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < workers; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace expertmesh::data
