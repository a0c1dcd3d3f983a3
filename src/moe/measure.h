// SPDX-License-Identifier: Apache-2.0
// Times the dispatchers on the shapes of a run, for `ep_dispatcher: auto`: one MoE layer, forward and backward, random
// tokens with all experts equally likely. Memory: one layer's experts of this rank twice (weights and gradients), given
// back at the end.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "moe/sample_layer.h"

namespace expertmesh::moe {

// A dispatcher with its options.
struct Contender {
  std::string_view name;  // of the table
  DispatcherOptions options{};

  std::string label() const;  // "fused", "fused-no-dedup"
  bool operator==(const Contender&) const = default;
};

// Every dispatcher of the table, with dedup as said where it has an effect; left open, `fused` without it as well.
std::vector<Contender> contenders(std::optional<bool> dedup, bool shares_memory);

// Without those that are `fused` on these shapes: `domino` where all tokens stay in one slice, `mc2` apart where an
// exchange stays in one piece. Between them nothing but noise could choose.
std::vector<Contender> distinct(std::vector<Contender> contenders, const LayerShape& shape, bool shares_memory);

struct ContenderTime {
  Contender contender;
  // Of the slowest rank: median over rounds of what it is of the first contender in the same round, times the first
  // one's median. What slows down a minute slows down all.
  double milliseconds = 0;
};

constexpr double kAutoSeconds = 1.5;  // that `auto` measures

// In the order of the contenders; equal on all ranks. Rounds are interleaved until `seconds` are over; one warms up,
// three at least are measured. Collective over ep and all, which has the ranks of every ep group.
std::vector<ContenderTime> measure_dispatchers(const LayerShape& shape, const std::vector<Contender>& contenders,
                                               comm::Group& ep, comm::Group& all, double seconds);

// The fastest; of those within 2% of it the first, so that noise does not choose.
const Contender& fastest(const std::vector<ContenderTime>& times);
// One line each.
std::string times_text(const std::vector<ContenderTime>& times);

}  // namespace expertmesh::moe
