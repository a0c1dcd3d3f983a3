// SPDX-License-Identifier: Apache-2.0
// Factory of the `mc2` dispatcher, for the table in dispatchers.cc.
#pragma once

#include <memory>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

// Apart, the exchange goes rank by rank where an expert gets as many rows from each on average: with fewer, what each
// piece costs by itself is more than what passes meanwhile (measured, docs/dispatchers.md).
constexpr int64_t kMinMc2PieceRows = 512;

std::unique_ptr<Dispatcher> make_mc2_dispatcher(const DispatcherOptions& options);

}  // namespace expertmesh::moe
