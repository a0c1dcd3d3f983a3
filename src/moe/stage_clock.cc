// SPDX-License-Identifier: Apache-2.0
#include "moe/stage_clock.h"

#include "base/check.h"

namespace expertmesh::moe {
namespace {

struct Running {
  StageSeconds* seconds = nullptr;
  bool is_in_stage = false;
};

thread_local Running t_running;

}  // namespace

StageClock::StageClock(StageSeconds& seconds) {
  EXPERTMESH_CHECK(t_running.seconds == nullptr, "two clocks in one thread");
  t_running.seconds = &seconds;
}

StageClock::~StageClock() { t_running.seconds = nullptr; }

StageTimer::StageTimer(Stage stage) : span_(kStageSpans[static_cast<size_t>(stage)]) {
  if (t_running.seconds == nullptr || t_running.is_in_stage) return;
  t_running.is_in_stage = true;
  seconds_ = &(*t_running.seconds)[static_cast<size_t>(stage)];
  start_ = std::chrono::steady_clock::now();
}

StageTimer::~StageTimer() {
  if (seconds_ == nullptr) return;
  t_running.is_in_stage = false;
  *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace expertmesh::moe
