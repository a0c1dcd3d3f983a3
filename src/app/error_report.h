// SPDX-License-Identifier: Apache-2.0
// What the user sees of an error: one block on stderr, and the exit code.
#pragma once

#include "base/error.h"

namespace expertmesh::app {

// Prints the block and returns the exit code.
int report_error(const base::Error& error);

}  // namespace expertmesh::app
