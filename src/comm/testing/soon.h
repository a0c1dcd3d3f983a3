// SPDX-License-Identifier: Apache-2.0
// What "ends soon" means in tests of failures.
#pragma once

namespace expertmesh::comm::testing {

// Seconds, far above what a busy machine takes to end all ranks, far below the time-out of the ranks that would hang.
constexpr double kSoon = 60;

}  // namespace expertmesh::comm::testing
