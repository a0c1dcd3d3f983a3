// SPDX-License-Identifier: Apache-2.0
// Vectors of fp32 and bf16 for kernels that are compiled for AVX-512 alone. Instructions of AVX-512 BF16 are assembly,
// behind a question for them: processors without it run the same kernels. Include it before anything else that includes
// immintrin.h. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

// g++ 12 takes the undefined inputs inside these intrinsics for mistakes of the caller.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define EXPERTMESH_AVX512_SETS "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#define EXPERTMESH_AVX512_TARGET [[gnu::target(EXPERTMESH_AVX512_SETS)]]
#define EXPERTMESH_AVX512_LAMBDA __attribute__((always_inline, target(EXPERTMESH_AVX512_SETS)))

namespace expertmesh::ops::cpu {

EXPERTMESH_AVX512_TARGET inline __m256i load_half(const Bf16* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

EXPERTMESH_AVX512_TARGET inline __m256i round_to_bf16(__m512 x) {
  if (has_bf16()) [[likely]] {
    __m256i y;
    asm("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
    return y;
  }
  Bf16 lanes[kLanes];
  store(lanes, reinterpret_cast<Vec>(x));
  return load_half(lanes);
}

// Sixteen of each, one behind the other.
EXPERTMESH_AVX512_TARGET inline __m512i round_to_bf16(__m512 first, __m512 second) {
  if (has_bf16()) [[likely]] {
    __m512i y;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(y) : "v"(first), "v"(second));
    return y;
  }
  return _mm512_inserti64x4(_mm512_castsi256_si512(round_to_bf16(first)), round_to_bf16(second), 1);
}

// sums += a b for the pairs of each lane. On a processor with AVX-512 BF16.
EXPERTMESH_AVX512_TARGET EXPERTMESH_INLINE void add_dots(__m512& sums, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}

EXPERTMESH_AVX512_TARGET inline void store_half(Bf16* p, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}

EXPERTMESH_AVX512_TARGET inline __m512 to_fp32(__m256i x) {
  return reinterpret_cast<__m512>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Lanes of two rows side by side: the first in the lower half of a pair.
EXPERTMESH_AVX512_TARGET inline __m512i pair_up(__m256i first, __m256i second) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// e^x for x <= 0 (a rounding error above is fine): 0 below -104, NaN for NaN. 2^n is one instruction, which needs no
// care at the ends of the range.
EXPERTMESH_AVX512_TARGET inline __m512 exp_of_negative(__m512 x) {
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-110.0F), x);  // the second where one is NaN
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504F)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), bounded);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0F)));
  return _mm512_scalef_ps(p, n);
}

}  // namespace expertmesh::ops::cpu
