// SPDX-License-Identifier: Apache-2.0
// Works in blocks that stay in the first cache: the block of every source is added to an accumulator in the order of
// the sources, then written. Each element sees the same additions whatever the vector width, so results do not depend
// on it.
#include "comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

// The functions below are simple loops over contiguous arrays.
#pragma GCC optimize("O3")

// One version per instruction set, chosen when the program starts. Not under sanitizers: their runtime is not up yet
// then.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define EXPERTMESH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EXPERTMESH_CLONES
#endif

namespace expertmesh::comm {
namespace {

constexpr int64_t kBlock = 2048;

EXPERTMESH_CLONES void add_float(float* __restrict acc, const float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += x[i];
}

EXPERTMESH_CLONES void widen_bf16(float* __restrict acc, const uint16_t* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = base::bf16_to_float(x[i]);
}

EXPERTMESH_CLONES void add_bf16(float* __restrict acc, const uint16_t* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += base::bf16_to_float(x[i]);
}

EXPERTMESH_CLONES void round_bf16(uint16_t* __restrict out, const float* __restrict acc, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t wide;
    std::memcpy(&wide, &acc[i], sizeof wide);
    const uint32_t nan = (wide >> 16) | 0x40U;
    const uint32_t rounded = (wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16;
    out[i] = static_cast<uint16_t>((wide & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
}

EXPERTMESH_CLONES void add_double(double* __restrict acc, const double* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] += x[i];
}

// Wraps on overflow.
EXPERTMESH_CLONES void add_int(int64_t* __restrict acc, const int64_t* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    acc[i] = static_cast<int64_t>(static_cast<uint64_t>(acc[i]) + static_cast<uint64_t>(x[i]));
  }
}

template <typename T>
void keep_extreme(T* __restrict acc, const T* __restrict x, int64_t n, bool largest) {
  for (int64_t i = 0; i < n; ++i) {
    const bool better = largest ? x[i] > acc[i] : x[i] < acc[i];
    const bool is_nan = x[i] != x[i];
    if (better || is_nan) acc[i] = x[i];
  }
}

void add(float* acc, const float* x, int64_t n) { add_float(acc, x, n); }
void add(double* acc, const double* x, int64_t n) { add_double(acc, x, n); }
void add(int64_t* acc, const int64_t* x, int64_t n) { add_int(acc, x, n); }

template <typename T>
void reduce_own_type(std::span<const void* const> sources, ReduceOp op, T* out, int64_t count) {
  T block[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start);
    const auto bytes = static_cast<size_t>(n) * sizeof(T);
    std::memcpy(block, static_cast<const T*>(sources[0]) + start, bytes);
    for (const void* source : sources.subspan(1)) {
      const T* x = static_cast<const T*>(source) + start;
      if (op == ReduceOp::kSum) {
        add(block, x, n);
      } else {
        keep_extreme(block, x, n, op == ReduceOp::kMax);
      }
    }
    std::memcpy(out + start, block, bytes);
  }
}

// The sum of one block of every source in fp32.
void sum_block(std::span<const void* const> sources, DType dtype, float* block, int64_t start, int64_t n) {
  if (dtype == DType::kF32) {
    std::memcpy(block, static_cast<const float*>(sources[0]) + start, static_cast<size_t>(n) * sizeof(float));
    for (const void* source : sources.subspan(1)) add_float(block, static_cast<const float*>(source) + start, n);
  } else {
    widen_bf16(block, static_cast<const uint16_t*>(sources[0]) + start, n);
    for (const void* source : sources.subspan(1)) add_bf16(block, static_cast<const uint16_t*>(source) + start, n);
  }
}

void reduce_bf16(std::span<const void* const> sources, ReduceOp op, uint16_t* out, int64_t count) {
  float block[kBlock];
  float other[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start);
    if (op == ReduceOp::kSum) {
      sum_block(sources, DType::kBF16, block, start, n);
    } else {
      widen_bf16(block, static_cast<const uint16_t*>(sources[0]) + start, n);
      for (const void* source : sources.subspan(1)) {
        widen_bf16(other, static_cast<const uint16_t*>(source) + start, n);
        keep_extreme(block, other, n, op == ReduceOp::kMax);
      }
    }
    round_bf16(out + start, block, n);
  }
}

}  // namespace

void sum_to_float(std::span<const void* const> sources, DType dtype, float* out, int64_t count, bool accumulate) {
  EXPERTMESH_CHECK(!sources.empty() && (dtype == DType::kF32 || dtype == DType::kBF16));
  float block[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start);
    sum_block(sources, dtype, block, start, n);
    if (accumulate) {
      add_float(out + start, block, n);
    } else {
      std::memcpy(out + start, block, static_cast<size_t>(n) * sizeof(float));
    }
  }
}

void reduce_in_place(std::span<const void* const> sources, DType dtype, ReduceOp op, void* out, int64_t count) {
  EXPERTMESH_CHECK(!sources.empty());
  switch (dtype) {
    case DType::kF32:
      return reduce_own_type(sources, op, static_cast<float*>(out), count);
    case DType::kF64:
      return reduce_own_type(sources, op, static_cast<double*>(out), count);
    case DType::kI64:
      return reduce_own_type(sources, op, static_cast<int64_t*>(out), count);
    case DType::kBF16:
      return reduce_bf16(sources, op, static_cast<uint16_t*>(out), count);
    default:
      EXPERTMESH_CHECK(false, "reduction of {}", base::dtype_name(dtype));
  }
}

}  // namespace expertmesh::comm
