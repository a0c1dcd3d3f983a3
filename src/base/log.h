// SPDX-License-Identifier: Apache-2.0
// Log lines on stderr: "[info] text". Results go to stdout, log lines never do. Threads: any.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace expertmesh::base {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();
void log_line(LogLevel level, std::string_view text);

// Hooks for a progress bar that shares the terminal: called before and after each line.
void set_log_hooks(void (*before)(), void (*after)());

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kDebug) log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kInfo) log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kWarn) log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace expertmesh::base
