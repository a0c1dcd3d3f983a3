// SPDX-License-Identifier: Apache-2.0
// Factory of the `domino` dispatcher, for the table in dispatchers.cc.
#pragma once

#include <memory>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

std::unique_ptr<Dispatcher> make_domino_dispatcher(const DispatcherOptions& options);

// For tests: slices of so few tokens, too; 0: as measured.
void TEST_cut_domino_slices_from(int64_t tokens);

}  // namespace expertmesh::moe
