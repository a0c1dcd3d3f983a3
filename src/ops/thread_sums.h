// SPDX-License-Identifier: Apache-2.0
// The gradient of a row's weight: each intra-op thread sums its rows, then the threads' sums are added in fp64.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "ops/cpu/column_sums.h"
#include "ops/raw.h"

namespace expertmesh::ops {

class ThreadSums {
 public:
  explicit ThreadSums(int64_t cols)
      : blocks_(at::zeros({at::get_num_threads(), cols}, at::kFloat)),
        totals_(at::zeros({at::get_num_threads(), cols}, at::kDouble)) {}

  // For a kernel in at::parallel_for.
  cpu::ColumnSums of_this_thread() const {
    const int64_t at = at::get_thread_num() * totals_.size(1);
    return {mutable_raw<float>(blocks_) + at, mutable_raw<double>(totals_) + at};
  }

  at::Tensor total(at::ScalarType dtype) const { return totals_.sum(0).to(dtype); }

 private:
  at::Tensor blocks_, totals_;  // [threads, cols]
};

}  // namespace expertmesh::ops
