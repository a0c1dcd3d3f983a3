// SPDX-License-Identifier: Apache-2.0
// AMX: eight tile registers of up to 16 rows x 64 bytes, and sums of products of bf16 tiles in fp32. Kernels are
// templates over an engine: AmxTiles are the processor's own; amx_emulated.h has the same in plain C++, for tests on
// processors without. No torch.
// Threads: the permission is the process's, asked for once; the configuration and the registers are a thread's own. A
// kernel configures on entry and releases on exit (TileScope), and calls no library in between: those that use tiles
// themselves leave their own configuration.
// Why not the intrinsics: g++ 12's declare no memory that they read, so stores before them may be moved or dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/cpu/vec.h"

namespace expertmesh::ops::cpu {

enum class AmxState {
  kUsable,
  kAbsent,   // the processor or the operating system has no bf16 tiles, or no AVX-512 BF16 beside them
  kRefused,  // they are there, and this process may not use them
};

// Asked of the processor and the operating system on the first call.
AmxState amx_state();
inline bool has_amx() { return amx_state() == AmxState::kUsable; }
std::string_view amx_state_text(AmxState state);

// What the first call of amx_state() finds; `ask_permission` is called where the processor has tiles.
AmxState find_amx_state(bool processor_has_it, bool (*ask_permission)());

constexpr int64_t kAmxRows = 16;      // rows of a tile, and its columns of 32 bits
constexpr int64_t kAmxRowBytes = 64;  // 16 fp32, or 32 bf16
constexpr int64_t kAmxDepth = 32;     // bf16 of a row
constexpr int64_t kAmxTileBytes = kAmxRows * kAmxRowBytes;

// As LDTILECFG reads it.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// All eight as large as they get.
constexpr TileConfig whole_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxRowBytes;
    config.rows[tile] = kAmxRows;
  }
  return config;
}

// bf16 as bits.
using TwoRounded [[gnu::may_alias]] = uint16_t __attribute__((vector_size(64)));

// Tile numbers are part of the instructions, so they are template arguments. Strides are in bytes.
struct AmxTiles {
  EXPERTMESH_INLINE static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  EXPERTMESH_INLINE static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  EXPERTMESH_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  EXPERTMESH_INLINE static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  EXPERTMESH_INLINE static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  // C[m, n] += sum over pairs p of A[m, 2p] B[p, 2n] and A[m, 2p + 1] B[p, 2n + 1].
  template <int kC, int kA, int kB>
  EXPERTMESH_INLINE static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }

  // Sixteen elements of `low`, then sixteen of `high`, rounded to nearest even.
  [[gnu::target("avx512f,avx512bf16")]] static TwoRounded round(Vec low, Vec high) {
    TwoRounded rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
    return rounded;
  }
  // To a cache line of its own, around the caches; a store fence before another thread may read it.
  [[gnu::target("avx512f")]] static void store_around(void* to, TwoRounded v) {
    asm volatile("vmovntdq %1, %0" : "=m"(*static_cast<TwoRounded*>(to)) : "v"(v));
  }
};

// Tiles of this thread are configured while it lives. One within another costs nothing: whoever runs many products
// without a library's between them keeps one around them.
template <typename Engine>
class TileScope {
 public:
  EXPERTMESH_INLINE TileScope() {
    if (depth()++ == 0) Engine::configure(config_);
  }
  EXPERTMESH_INLINE ~TileScope() {
    if (--depth() == 0) Engine::release();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  static constexpr TileConfig config_ = whole_tiles();
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }
};

// The same where the processor has AMX, else nothing.
class AmxScope {
 public:
  AmxScope() {
    if (has_amx()) scope_.emplace();
  }

 private:
  std::optional<TileScope<AmxTiles>> scope_;
};

}  // namespace expertmesh::ops::cpu
