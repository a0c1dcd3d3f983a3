// SPDX-License-Identifier: Apache-2.0
// C = A B or C += A B in bf16 with fp32 sums, on blocks that are in the cache, with AMX, with the dot products of
// AVX-512 BF16 or with FMAs: each multiplies pairs of neighbours along the depth. The inner product of attention and of
// the linear head. No torch.
//   A  pairs of each row through two strides, of which one is 1: rows of a bf16 matrix as they are, or [pair][row][2]
//   B  [pair][column][2]: two neighbours of the depth side by side for each column; columns come in sixteens
//   C  fp32, rows of contiguous columns
// An odd depth is padded with zeros by those who pack.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

struct PairRows {
  const BfPair* data = nullptr;
  int64_t row_stride = 0;  // both in pairs
  int64_t step = 1;
};

struct PairProduct {
  PairRows a;
  const BfPair* b = nullptr;
  int64_t b_stride = 0;  // between pairs of the depth, in columns
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 16
  int64_t pairs = 0;    // half of the depth
  bool adds = false;    // to what C holds

  // What is fetched ahead on the way, if anything: the rows of C that the next strip adds to, or bytes that the caller
  // needs next, as many as there is time for.
  bool adds_to_memory = false;
  const void* stream = nullptr;
  int64_t stream_bytes = 0;
};

// Whether this processor runs the functions below; calling one elsewhere is a programmer error.
bool has_pair_products();

// Whether they run on AMX tiles: then rows of A whose pairs lie one after the other cost less, and so does more depth
// at once, as sums are in registers and B is read at full rate from the second cache.
bool multiplies_on_tiles();

// "amx", "avx512_bf16" or "avx512".
const char* pair_products_name();

void multiply_pairs(const PairProduct& product);

// out[pair][column] for `columns` rows of `depth` contiguous elements: B^T as matrices are stored. Zeros past both
// ends, up to `out_columns` columns (a multiple of 16, also the stride of `out`) and `out_pairs` pairs.
void pack_pairs_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, BfPair* out,
                           int64_t out_columns, int64_t out_pairs);

// out[pair][column] for `depth` rows of `columns` contiguous elements. Zeros as above.
void pack_pairs(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, BfPair* out, int64_t out_columns,
                int64_t out_pairs);

}  // namespace expertmesh::ops::cpu
