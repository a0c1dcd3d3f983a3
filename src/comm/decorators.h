// SPDX-License-Identifier: Apache-2.0
// A group that behaves worse than the one inside: slow links and failing calls, for tests and benchmarks on any engine.
// Async: a slow call is ready at its time of posting + delay + bytes / bandwidth, so that work done meanwhile hides it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.h"
#include "comm/group.h"

namespace expertmesh::comm {

struct FaultPlan {
  std::chrono::microseconds delay{0};
  double bytes_per_second = 0;            // of this rank's own contribution; 0: no limit
  uint64_t throw_at = 0;                  // the call, counted from 1, that throws instead of being posted
  uint64_t drop_at = 0;                   // the call that is never made: the peers wait for it
  std::optional<base::Error> error = {};  // thrown at throw_at; left out, a kInternal one
};

// Threads: as the group inside.
std::shared_ptr<Group> make_faulty_group(std::shared_ptr<Group> inner, FaultPlan plan);

}  // namespace expertmesh::comm
