// SPDX-License-Identifier: Apache-2.0
// What `expertmesh bench moe` measures: a MoE layer, forward and backward, under one workload, all contenders in the
// same rounds. Before each step of an uneven workload the same contender takes a balanced one: what the busiest rank's
// rows take at that rate is the time that the step's own work implies.
#pragma once

#include <vector>

#include "comm/group.h"
#include "moe/measure.h"
#include "moe/workload.h"

namespace expertmesh::moe {

struct ContenderTimes {
  std::vector<double> seconds;  // of each round, on the slowest rank
  std::vector<double> implied;  // likewise; as measured where the workload is balanced
  std::vector<double> free;     // likewise, on links that take no time; empty: not asked
  // A step's, mean over ranks and rounds:
  StageSeconds forward{}, backward{};
  double sent_bytes = 0;   // brought to other ranks
  double saved_bytes = 0;  // what copies of tokens for each choice would have added
};

struct WorkloadTimes {
  std::vector<double> imbalance;  // of each round: rows of the busiest rank over the mean
  std::vector<ContenderTimes> contenders;
};

// `layer` says everything but the tokens, which the workload gives. Equal on all ranks. One round warms up.
// free_ep: the ranks of ep on links that take no time, to see what those of ep cost; nullptr: not asked.
// Collective over ep and all, which has the ranks of every ep group.
WorkloadTimes time_workload(const WorkloadShape& workload, LayerShape layer, const std::vector<Contender>& contenders,
                            int rounds, comm::Group& ep, comm::Group& all, comm::Group* free_ep = nullptr);

}  // namespace expertmesh::moe
