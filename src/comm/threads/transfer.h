// SPDX-License-Identifier: Apache-2.0
// The data movement of each collective between ranks that see each other's memory. No waiting here: the caller has met
// its peers. `calls` are all members' calls by group rank; `me` is the caller's.
#pragma once

#include <cstdint>
#include <span>

#include "comm/collective.h"

namespace expertmesh::comm {

using Calls = std::span<const Collective* const>;

void copy_all_gather(Calls calls, int me);
void sum_reduce_scatter(Calls calls, int me);
void copy_all_to_all(Calls calls, int me);
void copy_broadcast(Calls calls, int me);

// all_reduce of many elements: every rank reduces its slice in place, then (after a meet) copies the others'.
void reduce_own_slice(Calls calls, int me);
void copy_reduced_slices(Calls calls, int me);

// all_reduce of few: everything into scratch (bytes of the call), then (after a meet) into place.
void reduce_to_scratch(Calls calls, std::byte* scratch);
void write_from_scratch(const Collective& mine, const std::byte* scratch);

// What differs, in words, or "" where all calls fit together. The same text on every rank. `members` are global ranks.
std::string find_difference(Calls calls, std::span<const int> members);

}  // namespace expertmesh::comm
