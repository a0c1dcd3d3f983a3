// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace expertmesh::base {

// Freed memory stays in the process from now on. Big temporaries come back every step: that keeps their pages, instead
// of giving them to the system and faulting them in again. Once, before threads start.
void keep_freed_memory();

}  // namespace expertmesh::base
