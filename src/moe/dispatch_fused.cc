// SPDX-License-Identifier: Apache-2.0
// One exchange there and one back, as `eager`, with sorting and copying left to the products: a token travels once to
// each rank and they gather from what arrived; in the backward, rows and routing weights are on their way together.
#include "moe/dispatch_fused.h"

#include "moe/chunk_step.h"

namespace expertmesh::moe {

std::unique_ptr<Dispatcher> make_fused_dispatcher(const DispatcherOptions& options) {
  return make_step_dispatcher("fused", options,
                              [](const StepContext& context) { return make_chunk_step(context, {}); });
}

}  // namespace expertmesh::moe
