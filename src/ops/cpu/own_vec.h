// SPDX-License-Identifier: Apache-2.0
// Vectors as wide as an instruction set's own, for kernels that keep arrays of them in registers: g++ keeps an array of
// wider ones (vec.h) in memory. Vec4 is for plain x86-64, Vec8 for AVX2, Vec for AVX-512. No torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

using Vec4 = float __attribute__((vector_size(16)));
using Vec8 = float __attribute__((vector_size(32)));

// As many unsigned integers as V has floats.
using UintVec4 = uint32_t __attribute__((vector_size(16)));
using UintVec8 = uint32_t __attribute__((vector_size(32)));
template <typename V>
using BitsOf = std::conditional_t<std::is_same_v<V, Vec4>, UintVec4,
                                  std::conditional_t<std::is_same_v<V, Vec8>, UintVec8, UintVec>>;

template <typename V>
constexpr int64_t kWidth = sizeof(V) / sizeof(float);

template <typename V>
EXPERTMESH_INLINE V load_as(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace expertmesh::ops::cpu
