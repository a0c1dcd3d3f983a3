// SPDX-License-Identifier: Apache-2.0
// The longest side of a product is cut into blocks, so that an operand's fp32 copy is a few MiB and still in the cache
// when it is multiplied. Blocks of K add up in an fp32 result.
#include "ops/product.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cpu/pair_product.h"
#include "ops/new_tensor.h"

namespace expertmesh::ops {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;
constexpr int64_t kShortestBlock = 64;

std::atomic<bool> g_through_fp32{false};

// Length of a block of the side that is cut, `others` being the elements that one step along it brings.
int64_t block_length(int64_t others) { return std::max(kShortestBlock, kBlockElements / std::max<int64_t>(1, others)); }

template <typename Body>
void for_each_block(int64_t size, int64_t length, const Body& body) {
  for (int64_t begin = 0; begin < size; begin += length) body(begin, std::min(length, size - begin));
}

void cut_depth(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum = new_tensor(out.sizes(), at::kFloat);
  for_each_block(a.size(1), block_length(a.size(0) + b.size(1)), [&](int64_t begin, int64_t size) {
    const at::Tensor left = a.narrow(1, begin, size).to(at::kFloat), right = b.narrow(0, begin, size).to(at::kFloat);
    if (begin == 0) {
      at::mm_out(sum, left, right);
    } else {
      at::addmm_out(sum, sum, left, right);
    }
  });
  out.copy_(sum);
}

void cut_columns(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.to(at::kFloat);
  for_each_block(b.size(1), block_length(a.size(0) + a.size(1)), [&](int64_t begin, int64_t size) {
    out.narrow(1, begin, size).copy_(at::mm(left, b.narrow(1, begin, size).to(at::kFloat)));
  });
}

void cut_rows(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor right = b.to(at::kFloat);
  for_each_block(a.size(0), block_length(b.size(0) + b.size(1)), [&](int64_t begin, int64_t size) {
    out.narrow(0, begin, size).copy_(at::mm(a.narrow(0, begin, size).to(at::kFloat), right));
  });
}

void multiply_as_more_rows(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor rows = new_tensor({kLeastRows, a.size(1)}, a.scalar_type());
  rows.narrow(0, 0, a.size(0)).copy_(a);
  rows.narrow(0, a.size(0), kLeastRows - a.size(0)).zero_();
  out.copy_(at::mm(rows, b).narrow(0, 0, a.size(0)));
}

}  // namespace

bool library_multiplies(at::ScalarType dtype) {
  if (dtype != at::kBFloat16) return true;
  const bool has_fast_bf16 = cpu::multiplies_on_tiles() || cpu::instruction_sets().prefers_dots;
  return has_fast_bf16 && !g_through_fp32.load(std::memory_order_relaxed);
}

void TEST_multiply_through_fp32(bool on) { g_through_fp32.store(on); }

void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_graph;
  if (library_multiplies(a.scalar_type())) {
    if (a.scalar_type() == at::kFloat && a.size(0) > 0 && a.size(0) < kLeastRows) {
      multiply_as_more_rows(out, a, b);
    } else {
      at::mm_out(out, a, b);
    }
    return;
  }
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  EXPERTMESH_CHECK(b.size(0) == depth && out.size(0) == rows && out.size(1) == columns,
                   "[{}, {}] x [{}, {}] = [{}, {}]", rows, depth, b.size(0), columns, out.size(0), out.size(1));
  if (out.numel() == 0) return;
  if (depth == 0) {
    out.zero_();
  } else if (depth >= std::max(rows, columns)) {
    cut_depth(out, a, b);
  } else if (columns >= rows) {
    cut_columns(out, a, b);
  } else {
    cut_rows(out, a, b);
  }
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = new_tensor({a.size(0), b.size(1)}, a.scalar_type());
  product_into(out, a, b);
  return out;
}

}  // namespace expertmesh::ops
