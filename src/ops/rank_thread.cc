// SPDX-License-Identifier: Apache-2.0
#include "ops/rank_thread.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <mutex>

namespace expertmesh::ops {
namespace {

// One call of each part of MKL that is in use: vector functions and products.
void set_up_library() {
  const at::Tensor numbers = at::zeros({4, 4}, at::kFloat);
  at::cos(numbers);
  at::mm(numbers, numbers);
}

}  // namespace

void begin_rank_thread(int intra_op_threads) {
  at::set_num_threads(intra_op_threads);
  static std::once_flag once;
  std::call_once(once, set_up_library);
}

}  // namespace expertmesh::ops
