// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of given token rows, on any mesh: rows go to the dp ranks in batches, results come in input order.
#pragma once

#include <functional>
#include <vector>

#include "comm/world.h"
#include "data/input_rows.h"
#include "train/job.h"

namespace expertmesh::train {

struct RowScore {
  std::vector<float> logprobs;  // natural log of tokens 1..n-1
  double nll = 0;               // their negated sum
};

// `emit` is called on global rank 0, once a row in input order, as batches finish. Collective over the world.
void run_scoring(comm::World& world, const Job& job, const std::vector<data::InputRow>& rows,
                 const std::function<void(const RowScore&)>& emit);

}  // namespace expertmesh::train
