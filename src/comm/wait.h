// SPDX-License-Identifier: Apache-2.0
// The one way in which rank threads wait for each other: every wait ends when its condition holds, when it is
// interrupted (abort, a peer that left), or at its deadline. Spins briefly only where the host has a core for every
// rank. Threads: any number arrive and wait. Why not std::barrier or std::condition_variable: neither has a deadline
// and an interrupt together at a cost of one atomic add.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace expertmesh::comm {

using WaitClock = std::chrono::steady_clock;

// Timeouts beyond this mean "for ever"; adding one to a time cannot overflow.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 10);

// Counts arrivals; `target` is the count of arrivals at which waiters go on. Counts only grow (and wrap).
class alignas(64) Meet {
 public:
  // Wakes the waiters where this arrival reaches `target`. What was written before is seen by those who waited.
  void arrive(uint32_t target);
  bool is_reached(uint32_t target) const {
    return static_cast<int32_t>(count_.load(std::memory_order_acquire) - target) >= 0;
  }

 private:
  friend class Waiter;
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

enum class WaitEnd { kReady, kInterrupted, kDeadline };

// What one rank thread waits with. `wake` may be called by any thread, at any time.
class Waiter {
 public:
  // spins: tries before sleeping, 0 on oversubscribed hosts.
  explicit Waiter(int spins) : spins_(spins) {}

  // `is_interrupted` is asked before every sleep; a condition that holds by then wins.
  WaitEnd wait(Meet& meet, uint32_t target, WaitClock::time_point deadline,
               const std::function<bool()>& is_interrupted);
  void wake();

  // For conditions that hold within a copy's time and have no Meet: tries, sleeping in between.
  static void poll_until(const std::function<bool()>& holds);

 private:
  int spins_;
  std::atomic<std::atomic<uint32_t>*> sleeping_on_{nullptr};
};

// How often to try before sleeping when `ranks` threads share this host.
int spins_for(int ranks);

// Cores this process may use.
int available_cores();

}  // namespace expertmesh::comm
