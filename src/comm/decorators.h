// SPDX-License-Identifier: Apache-2.0
// Groups around another one, for tests and benchmarks on any engine: slow links and failing calls; counted bytes.
// Async: a slow call is ready when its bytes have passed behind those of the calls before it, and the delay is over, so
// that work done meanwhile hides it.
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
  double bytes_per_second = 0;            // of what this rank brings to its peers; 0: no limit
  uint64_t throw_at = 0;                  // the call, counted from 1, that throws instead of being posted
  uint64_t drop_at = 0;                   // the call that is never made: the peers wait for it
  std::optional<base::Error> error = {};  // thrown at throw_at; left out, a kInternal one
};

// Threads: as the group inside. Ranks do not see each other's memory, as with processes.
std::shared_ptr<Group> make_faulty_group(std::shared_ptr<Group> inner, FaultPlan plan);

// Adds to `bytes`, which outlives the group, what each call of this rank brings to its peers: of a reduction or a
// gather its whole contribution, of an exchange all rows but its own. A window brings none.
std::shared_ptr<Group> make_counting_group(std::shared_ptr<Group> inner, int64_t& bytes);

}  // namespace expertmesh::comm
