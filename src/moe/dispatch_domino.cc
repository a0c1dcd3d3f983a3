// SPDX-License-Identifier: Apache-2.0
// The tokens in slices: while the experts work on one, others are on their way, there and back, in forward and
// backward. Of n slices nothing hides the first one's way there and the last one's way back, so two hide half of a
// forward's exchange at best, four three quarters. Few tokens stay in one slice: each costs the experts something by
// itself.
#include "moe/dispatch_domino.h"

#include <atomic>
#include <mutex>

#include "base/log.h"
#include "moe/chunk_step.h"

namespace expertmesh::moe {
namespace {

std::atomic<int64_t> g_forced_slice_tokens{0};

// Once in a process: it is the same in each layer and step.
void tell_one_slice() {
  static std::once_flag told;
  std::call_once(told, [] {
    base::log_info("domino: fewer than {} tokens on every rank stay in one slice", 2 * kMinDominoSliceTokens);
  });
}

ChunkRule slices() {
  const int64_t forced = g_forced_slice_tokens.load(std::memory_order_relaxed);
  return {.cut = ChunkCut::kSlices,
          .slices = 4,
          .min_slice_tokens = forced > 0 ? forced : kMinDominoSliceTokens,
          .tell_whole = tell_one_slice};
}

}  // namespace

void TEST_cut_domino_slices_from(int64_t tokens) { g_forced_slice_tokens.store(tokens); }

std::unique_ptr<Dispatcher> make_domino_dispatcher(const DispatcherOptions& options) {
  return make_step_dispatcher("domino", options,
                              [](const StepContext& context) { return make_chunk_step(context, slices()); });
}

}  // namespace expertmesh::moe
