// SPDX-License-Identifier: Apache-2.0
// Named points where tests make a rank fail: EXPERTMESH_FAULT=point:rank=1:hit=3:do=kill (several: separated by
// commas). Actions: kill, stop, throw, hang, sleep_ms=N, exit, nan (the caller of fault_wants_nan poisons its value),
// count. Hits are counted from 1, for each rank alone: hit=3 is the third, hit=3+ the third and all later ones, no hit
// every one. The point * stands for all of them. Costs one relaxed load where no fault is set.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace expertmesh::base {

// Reads EXPERTMESH_FAULT, or the given text; throws Error(kUsage) for text that does not parse. Once, before ranks
// start.
void configure_faults(std::string_view text);
void configure_faults_from_environment();

// The rank of the calling thread, for rank=K; -1 until set.
void set_fault_rank(int rank);

namespace detail {
extern std::atomic<bool> g_faults_on;
void hit_fault_point(std::string_view point);
bool hit_nan_point(std::string_view point, std::string_view name);
}  // namespace detail

// True where a fault `POINT:name=NAME:do=nan` says that the named value becomes NaN now (name left out: any).
inline bool fault_wants_nan(std::string_view point, std::string_view name) {
  return detail::g_faults_on.load(std::memory_order_relaxed) && detail::hit_nan_point(point, name);
}

// Points hit so far and how often, as "point count" lines (do=count).
std::string fault_counts();

}  // namespace expertmesh::base

#define EXPERTMESH_FAULT_POINT(point)                                                           \
  do {                                                                                          \
    if (::expertmesh::base::detail::g_faults_on.load(std::memory_order_relaxed)) [[unlikely]] { \
      ::expertmesh::base::detail::hit_fault_point(point);                                       \
    }                                                                                           \
  } while (false)
