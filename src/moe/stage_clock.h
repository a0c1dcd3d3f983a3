// SPDX-License-Identifier: Apache-2.0
// Where the time of dispatches goes, stage by stage. A StageClock counts what its thread does while it lives: a rank is
// one thread, also in backward. Without one, a timer reads no time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

#include "base/trace.h"

namespace expertmesh::moe {

// kPlan: where rows go, with the exchange of counts. kPermute: rows copied into another order. kExchange: posting and
// waiting, for peers too. kCombine: sums over the choices of a token.
enum class Stage { kPlan, kPermute, kExchange, kExperts, kCombine };
constexpr size_t kNumStages = 5;
constexpr std::array<std::string_view, kNumStages> kStageNames{"plan", "permute", "exchange", "experts", "combine"};
constexpr std::array<std::string_view, kNumStages> kStageSpans{"moe plan", "moe permute", "moe exchange", "moe experts",
                                                               "moe combine"};

using StageSeconds = std::array<double, kNumStages>;

// Adds to `seconds`, which outlives it. One at a time in a thread.
class StageClock {
 public:
  explicit StageClock(StageSeconds& seconds);
  ~StageClock();
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;
};

// The stage from here to the end of the scope; within another stage's, part of that one.
class StageTimer {
 public:
  explicit StageTimer(Stage stage);
  ~StageTimer();
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  const base::Span span_;
  double* seconds_ = nullptr;  // nullptr: not counted
  std::chrono::steady_clock::time_point start_;
};

template <typename Run>
auto timed(Stage stage, const Run& run) {
  const StageTimer timer(stage);
  return run();
}

}  // namespace expertmesh::moe
