// SPDX-License-Identifier: Apache-2.0
// What AMX can do at most in this thread, at this minute: dot products alone, and with the loads that they need from
// the first cache ("L1 rate"). Of numbers as tensors hold them: with zeros processors run at a higher clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/amx_product.h"

namespace expertmesh {

constexpr double kDotFlop = 2.0 * ops::cpu::kAmxRows * ops::cpu::kAmxRows * ops::cpu::kAmxDepth;

// Four tiles of bf16 between -1 and 1.
inline const std::byte* amx_tiles() {
  struct alignas(64) Tiles {
    uint32_t pairs[ops::cpu::kAmxTileBytes];
    Tiles() {
      uint32_t state = 1;
      for (uint32_t& pair : pairs) {
        state = state * 1664525 + 1013904223;
        pair = (state & 0x83ff83ff) | 0x3c003c00;
      }
    }
  };
  static const Tiles tiles;
  return reinterpret_cast<const std::byte*>(tiles.pairs);
}

// Four dot products on registers, so many times.
inline void amx_dots(int64_t steps) {
  using ops::cpu::AmxTiles;
  const ops::cpu::TileScope<AmxTiles> scope;
  AmxTiles::load<4>(amx_tiles(), ops::cpu::kAmxRowBytes);
  AmxTiles::load<5>(amx_tiles() + ops::cpu::kAmxTileBytes, ops::cpu::kAmxRowBytes);
  AmxTiles::load<6>(amx_tiles() + 2 * ops::cpu::kAmxTileBytes, ops::cpu::kAmxRowBytes);
  AmxTiles::load<7>(amx_tiles() + 3 * ops::cpu::kAmxTileBytes, ops::cpu::kAmxRowBytes);
  for (int64_t i = 0; i < steps; ++i) {
    AmxTiles::multiply_add<0, 4, 6>();
    AmxTiles::multiply_add<1, 4, 7>();
    AmxTiles::multiply_add<2, 5, 6>();
    AmxTiles::multiply_add<3, 5, 7>();
  }
}

// As many with four loads for each four, of tiles that stay in the first cache.
inline void amx_from_first_cache(int64_t steps) {
  using namespace ops::cpu;
  struct Nothing {
    void step() {}
    void stored() {}
  } nothing;
  alignas(64) static thread_local float sums[4 * kAmxRows * kAmxRows];
  const TileScope<AmxTiles> scope;
  TileBlock block;
  block.a = amx_tiles();
  block.a_tile = kAmxTileBytes;
  block.b = amx_tiles() + 2 * kAmxTileBytes;
  block.b_tile = kAmxTileBytes;
  block.a_step = block.b_step = 0;
  block.steps = steps;
  block.sums = {.c = sums, .c_stride = 2 * kAmxRowBytes, .c_tile = kAmxRows * 2 * kAmxRowBytes};
  TileBlocks<AmxTiles> blocks;
  blocks.multiply(block, 2, 2, nothing);
  blocks.finish();
}

}  // namespace expertmesh
