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
  int slices = 1;                  // at most; a power of two
  int64_t min_slice_tokens = 0;    // half as many slices, and again, where no rank of ep would have as many in each
  int64_t min_expert_rows = 0;     // of kRanks: one chunk where an expert gets fewer from a rank, on average
  void (*tell_whole)() = nullptr;  // called where it stays in one chunk, on global rank 0
};

std::unique_ptr<DispatchStep> make_chunk_step(const StepContext& context, const ChunkRule& rule);

}  // namespace expertmesh::moe
