// SPDX-License-Identifier: Apache-2.0
// Experts as independent tasks of the caller's intra-op threads, taken from a shared counter: a busy expert does not
// hold up the others of a thread, and no result depends on which thread ran it.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "moe/expert_mlp.h"

namespace expertmesh::moe {

// One expert's share of the rows.
struct ExpertTask {
  int64_t expert = 0;
  int64_t begin = 0;
  int64_t rows = 0;
};

// make_worker() is called once in each thread that takes part, the worker with each task of the thread.
template <typename MakeWorker>
void for_each_expert(const ExpertRows& rows, const MakeWorker& make_worker) {
  std::atomic<int64_t> next{0};
  const auto run = [&](int64_t /*begin*/, int64_t /*end*/) {
    const at::NoGradGuard no_graph;  // threads do not inherit the caller's
    auto worker = make_worker();
    for (int64_t expert = next++; expert < rows.num_experts(); expert = next++) {
      const auto e = static_cast<size_t>(expert);
      worker(ExpertTask{expert, rows.offsets[e], rows.offsets[e + 1] - rows.offsets[e]});
    }
  };
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), rows.num_experts()), 1, run);
}

}  // namespace expertmesh::moe
