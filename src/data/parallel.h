// SPDX-License-Identifier: Apache-2.0
// A loop over independent pieces of work on several threads, whose error does not depend on their number.
#pragma once

#include <cstddef>
#include <functional>

namespace expertmesh::data {

// Calls body(0) ... body(count - 1), each once, on `threads` threads (0 = all cores) including the caller's. After an
// exception, pieces behind it are not started; the exception of the first piece that has one is thrown.
void parallel_pieces(size_t count, int threads, const std::function<void(size_t)>& body);

}  // namespace expertmesh::data
