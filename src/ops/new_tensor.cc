// SPDX-License-Identifier: Apache-2.0
#include "ops/new_tensor.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <limits>

namespace expertmesh::ops {
namespace {

#ifdef EXPERTMESH_POISON
constexpr bool kPoisonFromStart = true;
#else
constexpr bool kPoisonFromStart = false;
#endif
std::atomic<bool> g_poison{kPoisonFromStart};

}  // namespace

at::Tensor new_tensor(at::IntArrayRef shape, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty(shape, options);
  if (poisons_new_memory()) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  return tensor;
}

at::Tensor new_tensor(at::IntArrayRef shape, at::ScalarType dtype) {
  return new_tensor(shape, at::TensorOptions().dtype(dtype));
}

at::Tensor new_like(const at::Tensor& like) { return new_tensor(like.sizes(), like.options()); }

bool poisons_new_memory() { return g_poison.load(std::memory_order_relaxed); }

void TEST_poison_new_memory(bool on) { g_poison.store(on); }

}  // namespace expertmesh::ops
