// SPDX-License-Identifier: Apache-2.0
// Up to 2 x 2 tiles of C = A B on AMX: with eight registers the most dot products for each tile that is loaded.
// Templates over the engine (amx.h); the caller configures. No torch.
#pragma once

#include <cstdint>

#include "ops/cpu/amx.h"

namespace expertmesh::ops::cpu {

// Where the tiles of a block are. Strides are in bytes between the 16 rows of a tile; a step is 32 of the depth.
struct TileBlock {
  const void* a = nullptr;  // tiles [16 rows][32]
  int64_t a_stride = kAmxRowBytes;
  int64_t a_step = kAmxTileBytes;  // in bytes, from a step to the next
  int64_t a_tile = 0;              // in bytes, from the first 16 rows to the next 16
  const void* b = nullptr;         // tiles [16 pairs][16 columns][2]
  int64_t b_stride = kAmxRowBytes;
  int64_t b_step = kAmxTileBytes;
  int64_t b_tile = 0;
  int64_t steps = 0;
  // One more step, of contiguous tiles: A's one after the other, so B's. nullptr: none.
  const void* a_tail = nullptr;
  const void* b_tail = nullptr;
  float* c = nullptr;  // fp32, rows of c_stride bytes
  int64_t c_stride = 0;
  bool adds = false;  // to what C holds
};

template <int kRowTiles, int kColumnTiles, typename Engine>
struct TileBlockKernel {
  static_assert(kRowTiles <= 2 && kColumnTiles <= 2);
  static constexpr int kA = 4, kB = 6;  // C is in the registers 0 to 3

  // Calls `body` with the numbers of C's register, row tile and column tile.
  template <typename Body>
  EXPERTMESH_INLINE static void for_each_tile(const Body& body) {
    body.template operator()<0, 0, 0>();
    if constexpr (kColumnTiles > 1) body.template operator()<1, 0, 1>();
    if constexpr (kRowTiles > 1) body.template operator()<2, 1, 0>();
    if constexpr (kRowTiles > 1 && kColumnTiles > 1) body.template operator()<3, 1, 1>();
  }

  EXPERTMESH_INLINE static float* tile_of_c(const TileBlock& block, int row, int column) {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(block.c) + row * kAmxRows * block.c_stride) +
           column * kAmxRows;
  }

  // Loads first: then the dot products follow each other without a gap.
  EXPERTMESH_INLINE static void step(const char* a, int64_t a_stride, int64_t a_tile, const char* b, int64_t b_stride,
                                     int64_t b_tile) {
    Engine::template load<kB>(b, b_stride);
    Engine::template load<kA>(a, a_stride);
    if constexpr (kColumnTiles > 1) Engine::template load<kB + 1>(b + b_tile, b_stride);
    if constexpr (kRowTiles > 1) Engine::template load<kA + 1>(a + a_tile, a_stride);
    for_each_tile([]<int kC, int kRow, int kColumn>()
                      __attribute__((always_inline)) { Engine::template multiply_add<kC, kA + kRow, kB + kColumn>(); });
  }

  template <typename Background>
  EXPERTMESH_INLINE static void run(const TileBlock& block, Background& background) {
    for_each_tile([&]<int kC, int kRow, int kColumn>() __attribute__((always_inline)) {
      if (block.adds) {
        Engine::template load<kC>(tile_of_c(block, kRow, kColumn), block.c_stride);
      } else {
        Engine::template zero<kC>();
      }
    });
    const auto *a = static_cast<const char*>(block.a), *b = static_cast<const char*>(block.b);
    for (int64_t s = block.steps; s > 0; --s, a += block.a_step, b += block.b_step) {
      step(a, block.a_stride, block.a_tile, b, block.b_stride, block.b_tile);
      background.step();
    }
    if (block.b_tail != nullptr) {
      step(static_cast<const char*>(block.a_tail), kAmxRowBytes, kAmxTileBytes, static_cast<const char*>(block.b_tail),
           kAmxRowBytes, kAmxTileBytes);
    }
    background.finish();
    for_each_tile([&]<int kC, int kRow, int kColumn>() __attribute__((always_inline)) {
      Engine::template store<kC>(tile_of_c(block, kRow, kColumn), block.c_stride);
    });
  }
};

// row_tiles and column_tiles are 1 or 2. background.step() is called once a step, to be done while the tile unit is
// busy; background.finish() before C is written.
template <typename Engine, typename Background>
EXPERTMESH_INLINE void multiply_tiles(const TileBlock& block, int64_t row_tiles, int64_t column_tiles,
                                      Background& background) {
  if (row_tiles > 1) {
    if (column_tiles > 1) {
      TileBlockKernel<2, 2, Engine>::run(block, background);
    } else {
      TileBlockKernel<2, 1, Engine>::run(block, background);
    }
  } else if (column_tiles > 1) {
    TileBlockKernel<1, 2, Engine>::run(block, background);
  } else {
    TileBlockKernel<1, 1, Engine>::run(block, background);
  }
}

}  // namespace expertmesh::ops::cpu
