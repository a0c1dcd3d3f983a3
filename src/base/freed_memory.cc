// SPDX-License-Identifier: Apache-2.0
#include "base/freed_memory.h"

#include <malloc.h>

namespace expertmesh::base {

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_ARENA_MAX, 1);
}

}  // namespace expertmesh::base
