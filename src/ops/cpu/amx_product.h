// SPDX-License-Identifier: Apache-2.0
// Up to 2 x 2 tiles of C = A B on AMX: with eight registers the most dot products for each tile that is loaded. Sums
// stay in their registers until the next block has loaded its first operands: stored in between, they hold nobody up
// (blocks of four steps take three quarters of the time). Templates over the engine (amx.h); the caller configures. No
// torch.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/cpu/amx.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kAmxSide = 2 * kAmxRows;  // rows and columns of a block, at most

constexpr int64_t amx_parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

// Where sums go. Strides are in bytes.
struct TileSums {
  float* c = nullptr;  // fp32, rows of c_stride bytes
  int64_t c_stride = 0;
  int64_t c_tile = 0;  // from the first 16 rows to the next 16; they may overlap, as A's may
};

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
  TileSums sums;
  bool adds = false;  // to what C holds
};

// Blocks one after the other, of 1 or 2 tiles of rows and of columns. The last one's sums are in registers until
// finish(). background.step() is called once a step, to be done while the tile unit is busy; background.stored() when
// the sums of the block before have been written.
template <typename Engine>
class TileBlocks {
 public:
  template <typename Background>
  EXPERTMESH_INLINE void multiply(const TileBlock& block, int64_t row_tiles, int64_t column_tiles,
                                  Background& background) {
    if (row_tiles > 1) {
      if (column_tiles > 1) {
        run<2, 2>(block, background);
      } else {
        run<2, 1>(block, background);
      }
    } else if (column_tiles > 1) {
      run<1, 2>(block, background);
    } else {
      run<1, 1>(block, background);
    }
  }

  EXPERTMESH_INLINE void finish() {
    switch (std::exchange(waiting_, 0)) {
      case shape(2, 2):
        return store_all<2, 2>();
      case shape(2, 1):
        return store_all<2, 1>();
      case shape(1, 2):
        return store_all<1, 2>();
      case shape(1, 1):
        return store_all<1, 1>();
      default:
        return;
    }
  }

 private:
  static constexpr int kA = 4, kB = 6;  // C is in the registers 0 to 3
  static constexpr int shape(int rows, int columns) { return 2 * rows + columns; }

  // Calls `body` with the numbers of C's register, row tile and column tile.
  template <int kRows, int kColumns, typename Body>
  EXPERTMESH_INLINE static void for_each_tile(const Body& body) {
    body.template operator()<0, 0, 0>();
    if constexpr (kColumns > 1) body.template operator()<1, 0, 1>();
    if constexpr (kRows > 1) body.template operator()<2, 1, 0>();
    if constexpr (kRows > 1 && kColumns > 1) body.template operator()<3, 1, 1>();
  }

  EXPERTMESH_INLINE static float* tile_of(const TileSums& sums, int row, int column) {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(sums.c) + row * sums.c_tile) + column * kAmxRows;
  }

  template <int kRows, int kColumns>
  EXPERTMESH_INLINE void store_all() {
    for_each_tile<kRows, kColumns>([&]<int kC, int kRow, int kColumn>() __attribute__((always_inline)) {
      Engine::template store<kC>(tile_of(last_, kRow, kColumn), last_.c_stride);
    });
  }

  // Loads first: then the dot products follow each other without a gap.
  template <int kRows, int kColumns>
  EXPERTMESH_INLINE static void load(const char* a, int64_t a_stride, int64_t a_tile, const char* b, int64_t b_stride,
                                     int64_t b_tile) {
    Engine::template load<kB>(b, b_stride);
    Engine::template load<kA>(a, a_stride);
    if constexpr (kColumns > 1) Engine::template load<kB + 1>(b + b_tile, b_stride);
    if constexpr (kRows > 1) Engine::template load<kA + 1>(a + a_tile, a_stride);
  }
  template <int kRows, int kColumns>
  EXPERTMESH_INLINE static void load_tail(const TileBlock& block) {
    load<kRows, kColumns>(static_cast<const char*>(block.a_tail), kAmxRowBytes, kAmxTileBytes,
                          static_cast<const char*>(block.b_tail), kAmxRowBytes, kAmxTileBytes);
  }
  template <int kRows, int kColumns>
  EXPERTMESH_INLINE static void multiply_loaded() {
    for_each_tile<kRows, kColumns>([]<int kC, int kRow, int kColumn>() __attribute__((always_inline)) {
      Engine::template multiply_add<kC, kA + kRow, kB + kColumn>();
    });
  }

  // The first step, whose operands are loaded if there are any.
  template <int kRows, int kColumns, bool kStores, bool kMultiplies>
  EXPERTMESH_INLINE void begin(const TileBlock& block) {
    for_each_tile<kRows, kColumns>([&]<int kC, int kRow, int kColumn>() __attribute__((always_inline)) {
      if constexpr (kStores) Engine::template store<kC>(tile_of(last_, kRow, kColumn), last_.c_stride);
      if (block.adds) {
        Engine::template load<kC>(tile_of(block.sums, kRow, kColumn), block.sums.c_stride);
      } else {
        Engine::template zero<kC>();
      }
      if constexpr (kMultiplies) Engine::template multiply_add<kC, kA + kRow, kB + kColumn>();
    });
  }

  template <int kRows, int kColumns, typename Background>
  EXPERTMESH_INLINE void run(const TileBlock& block, Background& background) {
    const bool stores = waiting_ == shape(kRows, kColumns);
    if (!stores) finish();
    const auto *a = static_cast<const char*>(block.a), *b = static_cast<const char*>(block.b);
    const auto load_step = [&]() __attribute__((always_inline)) {
      load<kRows, kColumns>(a, block.a_stride, block.a_tile, b, block.b_stride, block.b_tile);
      a += block.a_step;
      b += block.b_step;
    };
    const bool has_tail = block.b_tail != nullptr;
    if (block.steps > 0) {
      load_step();
    } else if (has_tail) {
      load_tail<kRows, kColumns>(block);
    }
    if (block.steps == 0 && !has_tail) {
      if (stores) store_all<kRows, kColumns>();
      begin<kRows, kColumns, false, false>(block);
    } else if (stores) {
      begin<kRows, kColumns, true, true>(block);
    } else {
      begin<kRows, kColumns, false, true>(block);
    }
    background.stored();
    if (block.steps > 0) {
      background.step();
      for (int64_t s = block.steps - 1; s > 0; --s) {
        load_step();
        multiply_loaded<kRows, kColumns>();
        background.step();
      }
      if (has_tail) {
        load_tail<kRows, kColumns>(block);
        multiply_loaded<kRows, kColumns>();
      }
    }
    last_ = block.sums;
    waiting_ = shape(kRows, kColumns);
  }

  TileSums last_;
  int waiting_ = 0;  // shape of what is in the registers
};

}  // namespace expertmesh::ops::cpu
