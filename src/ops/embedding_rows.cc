// SPDX-License-Identifier: Apache-2.0
// Each thread owns columns and takes all tokens in order: no two threads add to one element.
#include "ops/embedding_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cross_entropy.h"
#include "ops/raw.h"

namespace expertmesh::ops {

void add_to_rows(const at::Tensor& sum, const at::Tensor& ids_in, const at::Tensor& rows_in) {
  constexpr int64_t kColumns = 64;  // of a task: a cache line or more
  const at::Tensor ids = ids_in.contiguous(), rows = rows_in.contiguous();
  const int64_t hidden = rows.size(1), num_tokens = rows.size(0);
  EXPERTMESH_CHECK(ids.numel() == num_tokens && sum.size(1) == hidden, "{} ids, {} rows of {}, sums of {}", ids.numel(),
                   num_tokens, hidden, sum.size(1));
  const int64_t* id = raw<int64_t>(ids);
  float* to = mutable_raw<float>(sum);
  with_element_type(rows.scalar_type(), [&]<typename T>(T) {
    const T* from = raw<T>(rows);
    at::parallel_for(0, (hidden + kColumns - 1) / kColumns, 1, [&](int64_t first, int64_t last) {
      const int64_t begin = first * kColumns, size = std::min(last * kColumns, hidden) - begin;
      for (int64_t t = 0; t < num_tokens; ++t) {
        cpu::accumulate(to + id[t] * hidden + begin, from + t * hidden + begin, size);
      }
    });
  });
}

}  // namespace expertmesh::ops
