// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace expertmesh::base {
namespace {

enum class Action { kKill, kStop, kThrow, kHang, kSleep, kExit, kNan, kCount };

struct Fault {
  std::string point;  // "*": every point
  std::string name;   // for kNan; empty: any
  int rank = -1;      // -1: any
  long hit = 0;       // 0: every hit, counted for each rank alone
  bool and_later = false;
  Action action = Action::kThrow;
  long sleep_ms = 0;
  std::map<int, long> hits_of_rank;
};

std::mutex g_mutex;
std::vector<Fault> g_faults;                      // guarded by g_mutex
std::map<std::string, long, std::less<>> g_hits;  // guarded by g_mutex
thread_local int t_rank = -1;

[[noreturn]] void bad_text(std::string_view text, std::string_view why) {
  throw make_error(Code::kUsage, "base/fault", "EXPERTMESH_FAULT: {} in '{}'", why, text)
      .hint(
          "The form is point[:rank=K][:hit=N or N+][:name=TENSOR]:do=kill|stop|throw|hang|sleep_ms=N|exit|nan|count.");
}

long number(std::string_view text, std::string_view all) {
  long value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < 0) {
    bad_text(all, fmt::format("'{}' is not a count", text));
  }
  return value;
}

void set_action(Fault& fault, std::string_view value, std::string_view all) {
  static const std::map<std::string_view, Action> kActions{
      {"kill", Action::kKill}, {"stop", Action::kStop}, {"throw", Action::kThrow}, {"hang", Action::kHang},
      {"exit", Action::kExit}, {"nan", Action::kNan},   {"count", Action::kCount}};
  if (value.starts_with("sleep_ms=")) {
    fault.action = Action::kSleep;
    fault.sleep_ms = number(value.substr(9), all);
    return;
  }
  const auto found = kActions.find(value);
  if (found == kActions.end()) bad_text(all, fmt::format("unknown action '{}'", value));
  fault.action = found->second;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Fault parse_fault(std::string_view text) {
  const auto parts = split(text, ':');
  Fault fault;
  fault.point = parts[0];
  if (fault.point.empty()) bad_text(text, "no point is named");
  bool has_action = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string_view::npos) bad_text(text, fmt::format("'{}' has no value", parts[i]));
    const std::string_view key = parts[i].substr(0, equals);
    std::string_view value = parts[i].substr(equals + 1);
    if (key == "rank") {
      fault.rank = static_cast<int>(number(value, text));
    } else if (key == "hit") {
      fault.and_later = value.ends_with('+');
      if (fault.and_later) value.remove_suffix(1);
      fault.hit = number(value, text);
      if (fault.hit == 0) bad_text(text, "hits are counted from 1");
    } else if (key == "name") {
      fault.name = value;
    } else if (key == "do") {
      set_action(fault, value, text);
      has_action = true;
    } else {
      bad_text(text, fmt::format("unknown key '{}'", key));
    }
  }
  if (!has_action) bad_text(text, "no action (do=...) is named");
  return fault;
}

// Whether this hit of the point is the one that the fault waits for. Counts it.
bool is_due(Fault& fault, std::string_view point, std::string_view name) {
  if (fault.point != "*" && fault.point != point) return false;
  if (fault.rank >= 0 && fault.rank != t_rank) return false;
  if (!fault.name.empty() && fault.name != name) return false;
  const long hits = ++fault.hits_of_rank[t_rank];
  return fault.hit == 0 || hits == fault.hit || (fault.and_later && hits > fault.hit);
}

void act(Action action, long sleep_ms, std::string_view point) {
  switch (action) {
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      return;
    case Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      return;
    case Action::kThrow:
      throw make_error(Code::kInternal, "base/fault", "fault point {} was told to fail", point);
    case Action::kHang:
      while (true) std::this_thread::sleep_for(std::chrono::hours(1));
    case Action::kSleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
      return;
    case Action::kExit:
      ::_exit(1);
    case Action::kNan:
    case Action::kCount:
      return;
  }
}

}  // namespace

namespace detail {

std::atomic<bool> g_faults_on{false};

void hit_fault_point(std::string_view point) {
  std::vector<std::pair<Action, long>> due;
  {
    const std::lock_guard lock(g_mutex);
    ++g_hits.try_emplace(std::string(point), 0).first->second;
    for (Fault& fault : g_faults) {
      if (fault.action != Action::kNan && is_due(fault, point, {})) due.emplace_back(fault.action, fault.sleep_ms);
    }
  }
  for (const auto& [action, sleep_ms] : due) act(action, sleep_ms, point);
}

bool hit_nan_point(std::string_view point, std::string_view name) {
  const std::lock_guard lock(g_mutex);
  ++g_hits.try_emplace(std::string(point), 0).first->second;
  bool wanted = false;
  for (Fault& fault : g_faults) {
    if (fault.action == Action::kNan && is_due(fault, point, name)) wanted = true;
  }
  return wanted;
}

}  // namespace detail

void configure_faults(std::string_view text) {
  std::vector<Fault> faults;
  if (!text.empty()) {
    for (const std::string_view part : split(text, ',')) faults.push_back(parse_fault(part));
  }
  const std::lock_guard lock(g_mutex);
  g_faults = std::move(faults);
  g_hits.clear();
  detail::g_faults_on = !g_faults.empty();
}

void configure_faults_from_environment() {
  const char* text = std::getenv("EXPERTMESH_FAULT");
  configure_faults(text == nullptr ? "" : text);
}

void set_fault_rank(int rank) { t_rank = rank; }

std::string fault_counts() {
  const std::lock_guard lock(g_mutex);
  std::string lines;
  for (const auto& [point, count] : g_hits) lines += fmt::format("{} {}\n", point, count);
  return lines;
}

}  // namespace expertmesh::base
