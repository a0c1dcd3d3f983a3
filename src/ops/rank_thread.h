// SPDX-License-Identifier: Apache-2.0
// What a rank's thread does before its first tensor operation.
#pragma once

namespace expertmesh::ops {

// Operations of the calling thread use `intra_op_threads` threads from here on. The first call in a process also runs
// what the library sets up at first use, while other callers wait: MKL publishes the number of its vector functions'
// variant before it has translated it, so that a thread which comes between takes another variant, whose exp and cos
// round differently: of some hundred runs with several rank threads one does not repeat to the bit.
void begin_rank_thread(int intra_op_threads);

}  // namespace expertmesh::ops
