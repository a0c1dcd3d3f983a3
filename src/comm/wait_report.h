// SPDX-License-Identifier: Apache-2.0
// The words of every message about a wait that did not end: who waits where, and what the missing ranks did last.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/ledger.h"

namespace expertmesh::comm {

// A collective that a rank waits in.
struct WaitPlace {
  std::string_view axis;
  int rank = 0;  // global
  Op op = Op::kBarrier;
  uint64_t sequence = 0;
  std::string_view tag;
  int64_t step = -1;  // -1: before the first
};

// "axis ep: rank 2 waits in all_to_all #812 (layer 17 combine, step 40)"
std::string waits_text(const WaitPlace& place);

// "rank 0 last finished all_gather #811 (layer 16 experts, step 40) on axis efsdp 31.0 s ago", or where it waits.
std::string doing_text(int rank, const Ledger& ledger);
// The same "and never entered #812".
std::string missing_text(int rank, const Ledger& ledger, const WaitPlace& place);

// kTimeout: who waits, for how long, who is missing and what they did last.
base::Error timeout_error(const WaitPlace& place, double seconds, const std::vector<std::string>& missing);
// kInternal: "ranks differ in collective #812 of axis ep in step 40: ", and how.
base::Error mismatch_error(const WaitPlace& place, const std::string& difference);
// kInternal: a rank returned while this one waits for it.
base::Error left_error(const WaitPlace& place, int left_rank);
// kPeerLost, a consequence of `cause`.
base::Error lost_error(const WaitPlace& place, int failed_rank, const std::optional<base::Error>& cause);

}  // namespace expertmesh::comm
