// SPDX-License-Identifier: Apache-2.0
// Times every dispatcher on the shapes of a run, for `ep_dispatcher: auto`: one MoE layer, forward and backward, random
// tokens with all experts equally likely. Memory: one layer's experts of this rank twice (weights and gradients), given
// back at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "moe/sample_layer.h"

namespace expertmesh::moe {

struct DispatcherTime {
  std::string_view name;
  double milliseconds = 0;  // median over rounds of the slowest rank
};

// In the order of the table; equal on all ranks. Rounds are interleaved until `seconds` are over; one warms up, one
// at least is measured.
// Collective over ep and all, which has the ranks of every ep group.
std::vector<DispatcherTime> measure_dispatchers(const LayerShape& shape, comm::Group& ep, comm::Group& all,
                                                double seconds);

// The fastest; of those within 2% of it the first of the table, so that noise does not choose.
std::string_view fastest(const std::vector<DispatcherTime>& times);
// One line each.
std::string times_text(const std::vector<DispatcherTime>& times);

}  // namespace expertmesh::moe
