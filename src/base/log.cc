// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace expertmesh::base {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<void (*)()> g_before{nullptr};
std::atomic<void (*)()> g_after{nullptr};
std::mutex g_mutex;

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error", ""};

}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void set_log_hooks(void (*before)(), void (*after)()) {
  g_before = before;
  g_after = after;
}

void log_line(LogLevel level, std::string_view text) {
  const std::string line = fmt::format("[{}] {}\n", kLevelNames[static_cast<int>(level)], text);
  const std::scoped_lock lock(g_mutex);
  if (auto* before = g_before.load()) before();
  // A closed stderr must not end the run.
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
  if (auto* after = g_after.load()) after();
}

}  // namespace expertmesh::base
