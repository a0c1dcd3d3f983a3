// SPDX-License-Identifier: Apache-2.0
#include "moe/scratch.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <limits>

namespace expertmesh::moe {
namespace {

#ifdef EXPERTMESH_POISON
constexpr bool kPoisonFromStart = true;
#else
constexpr bool kPoisonFromStart = false;
#endif
std::atomic<bool> g_poison{kPoisonFromStart};

}  // namespace

at::Tensor new_scratch(c10::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor scratch = at::empty(shape, dtype);
  if (g_poison.load(std::memory_order_relaxed)) scratch.fill_(std::numeric_limits<double>::quiet_NaN());
  return scratch;
}

void TEST_poison_scratch(bool on) { g_poison.store(on); }

}  // namespace expertmesh::moe
