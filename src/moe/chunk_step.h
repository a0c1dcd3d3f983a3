// SPDX-License-Identifier: Apache-2.0
// A dispatch whose exchange is cut into chunks: while the experts work on one, others are on their way, there and back.
// One chunk is the plain case: `fused`.
// Each token row travels once to a rank; the products gather from it for each expert there, so nothing is sorted or
// copied between exchange and product. Weight gradients are formed once, over all rows in the order of a single
// exchange: results are those of `eager`, and what arrives first changes nothing.
#pragma once

#include <memory>

#include "moe/chunk_plan.h"
#include "moe/dispatch_step.h"

namespace expertmesh::moe {

struct ChunkRule {
  ChunkCut cut = ChunkCut::kSlices;
  int slices = 1;                      // at most 2
  int64_t min_slice_tokens = 0;        // one slice where no rank of ep would have as many in each
  void (*tell_one_slice)() = nullptr;  // called then, on global rank 0
};

std::unique_ptr<DispatchStep> make_chunk_step(const StepContext& context, const ChunkRule& rule);

}  // namespace expertmesh::moe
