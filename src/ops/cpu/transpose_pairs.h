// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of sixteen pairs of bf16, turned in registers, for files that are compiled for AVX-512. No torch.
#pragma once

#include "ops/cpu/bf16_vec.h"

namespace expertmesh::ops::cpu {

// 16 rows of 16 pairs each become 16 pairs of 16 columns: out[i] for row i.
[[gnu::target("avx512f")]] inline void transpose_16x16(const __m512i (&in)[16], __m512i (&out)[16]) {
  __m512i two[16], four[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    two[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    four[i] = _mm512_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm512_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm512_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm512_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
  // four[4g + c] holds columns c, 4 + c, 8 + c, 12 + c of rows 4g to 4g + 3, a 128-bit lane each.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xdd);
    out[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    out[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    out[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    out[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

}  // namespace expertmesh::ops::cpu
