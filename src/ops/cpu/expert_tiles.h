// SPDX-License-Identifier: Apache-2.0
// The part of expert_gemm that an instruction set has to itself: one tile of a product, and packing. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

// Two neighbouring bf16 of a row, wherever it starts.
using Pair [[gnu::aligned(1), gnu::may_alias]] = uint32_t;

constexpr int64_t kMaxTileRows = 6;

// One tile: where its rows of A are, its columns of B, and where the results go.
struct ExpertTile {
  const Pair* a[kMaxTileRows] = {};  // first pair of each row
  int64_t a_step = 1;                // from one pair to the next
  const uint32_t* b = nullptr;
  int64_t b_block = 0;  // from one block of 16 columns to the next
  int64_t whole_pairs = 0;
  bool has_odd = false;  // a last k without its pair: A's other half is not there
  Bf16* c[kMaxTileRows] = {};
  int64_t columns = 0;  // that exist, of ExpertTiles::blocks * 16
};

struct ExpertTiles {
  int64_t blocks;  // of 16 columns in a tile, at most
  // The tile's first `rows` of up to kMaxTileRows.
  void (*run)(const ExpertTile& tile, int64_t rows);
  // Up to 16 rows of `depth` elements as one block of columns: [pairs][16][2], zeros past `columns` and `depth`.
  void (*pack_block_transposed)(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth, uint32_t* out);
  // One pair of rows (high may be nullptr: zeros) into every block of columns, `block_size` apart.
  void (*pack_pair)(const Bf16* low, const Bf16* high, int64_t columns, int64_t block_size, uint32_t* out);
};

extern const ExpertTiles kExpertTilesAvx512;  // AVX-512 BF16
extern const ExpertTiles kExpertTilesAvx2;    // AVX2 and FMA: pairs are widened to fp32 in registers

// All products from now on; nullptr: this processor's best.
void TEST_use_expert_tiles(const ExpertTiles* tiles);

}  // namespace expertmesh::ops::cpu
