// SPDX-License-Identifier: Apache-2.0
// Sleeping is one futex on the counter itself. A waiter announces itself in sleepers_ and then looks at the counter
// again; an arrival adds to the counter and then looks at sleepers_ (all sequentially consistent): one of them sees the
// other, so no wake-up is lost. Sleeps are cut into slices, so that an abort is seen even where its wake came too
// early.
#include "comm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

namespace expertmesh::comm {
namespace {

constexpr std::chrono::milliseconds kSlice{50};
// About 30 us: longer than a meet of ranks that are in step, shorter than two thread switches cost the others.
constexpr int kSpins = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  const timespec time{.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000),
                      .tv_nsec = static_cast<long>(limit.count() % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Meet::arrive(uint32_t target) {
  const uint32_t now = count_.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (now == target && sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(count_);
}

WaitEnd Waiter::wait(Meet& meet, uint32_t target, WaitClock::time_point deadline,
                     const std::function<bool()>& is_interrupted) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (meet.is_reached(target)) return WaitEnd::kReady;
    relax();
  }
  for (;;) {
    if (meet.is_reached(target)) return WaitEnd::kReady;
    if (is_interrupted()) return meet.is_reached(target) ? WaitEnd::kReady : WaitEnd::kInterrupted;
    const auto now = WaitClock::now();
    if (now >= deadline) return meet.is_reached(target) ? WaitEnd::kReady : WaitEnd::kDeadline;
    sleeping_on_.store(&meet.count_, std::memory_order_seq_cst);
    meet.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = meet.count_.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - target) < 0 && !is_interrupted()) {
      futex_sleep(meet.count_, seen, std::min<std::chrono::nanoseconds>(kSlice, deadline - now));
    }
    meet.sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    sleeping_on_.store(nullptr, std::memory_order_seq_cst);
  }
}

void Waiter::wake() {
  if (std::atomic<uint32_t>* word = sleeping_on_.load(std::memory_order_seq_cst)) futex_wake_all(*word);
}

void Waiter::poll_until(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int spins_for(int ranks) { return available_cores() >= ranks ? kSpins : 0; }

}  // namespace expertmesh::comm
