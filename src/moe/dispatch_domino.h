// SPDX-License-Identifier: Apache-2.0
// Factory of the `domino` dispatcher, for the table in dispatchers.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "moe/dispatcher.h"

namespace expertmesh::moe {

// Slices have as many tokens at least: with fewer on every rank than two of them, all stay in one, and domino is fused;
// with four of them there are four. Where links are free, two slices of 2048 tokens take 1.05 of the time of fused,
// four of 1024 up to 1.2; on links of 100 MB/s they hide 63% and 80% of it (docs/dispatchers.md).
constexpr int64_t kMinDominoSliceTokens = 1152;

std::unique_ptr<Dispatcher> make_domino_dispatcher(const DispatcherOptions& options);

// For tests: slices of so few tokens, too; 0: as measured.
void TEST_cut_domino_slices_from(int64_t tokens);

}  // namespace expertmesh::moe
