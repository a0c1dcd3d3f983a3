// SPDX-License-Identifier: Apache-2.0
// The tokens in two slices: while the experts work on one, the other is on its way, there and back, in forward and
// backward. Few tokens stay in one slice: an expert's weights would be prepared twice for a handful of rows each.
#include "moe/dispatch_domino.h"

#include <mutex>

#include "base/log.h"
#include "moe/chunk_step.h"

namespace expertmesh::moe {
namespace {

constexpr int64_t kMinSliceTokens = 1024;

// Once in a process: it is the same in each layer and step.
void tell_one_slice() {
  static std::once_flag told;
  std::call_once(told, [] {
    base::log_info("domino: fewer than {} tokens on every rank stay in one slice", 2 * kMinSliceTokens);
  });
}

constexpr ChunkRule kTwoSlices{
    .cut = ChunkCut::kSlices, .slices = 2, .min_slice_tokens = kMinSliceTokens, .tell_one_slice = tell_one_slice};

}  // namespace

std::unique_ptr<Dispatcher> make_domino_dispatcher() {
  return make_step_dispatcher("domino",
                              [](const StepContext& context) { return make_chunk_step(context, kTwoSlices); });
}

}  // namespace expertmesh::moe
