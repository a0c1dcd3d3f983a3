// SPDX-License-Identifier: Apache-2.0
// AMX tiles (amx.h) in plain C++, as Intel's manual defines the instructions: for tests. What the processor would
// answer with a fault is a failed check: tiles that are not configured, shapes that do not fit each other. Threads:
// each has tiles of its own.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "ops/cpu/amx.h"

namespace expertmesh::ops::cpu {

// The registers of one thread.
class TileFile {
 public:
  void configure(const TileConfig& config) {
    EXPERTMESH_CHECK(!is_configured_, "the tiles are configured already");
    EXPERTMESH_CHECK(config.palette == 1 && config.start_row == 0, "palette {}, start row {}", config.palette,
                     config.start_row);
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], bytes = config.row_bytes[tile];
      EXPERTMESH_CHECK((rows == 0) == (bytes == 0), "tile {} has {} rows of {} bytes", tile, rows, bytes);
      EXPERTMESH_CHECK(rows <= (tile < 8 ? kAmxRows : 0) && bytes <= kAmxRowBytes, "tile {} has {} rows of {} bytes",
                       tile, rows, bytes);
    }
    config_ = config;
    is_configured_ = true;
    std::memset(data_, 0, sizeof data_);
  }

  void release() {
    is_configured_ = false;
    std::memset(data_, 0, sizeof data_);
  }

  bool is_configured() const { return is_configured_; }

  void zero(int tile) {
    check(tile);
    std::memset(data_[tile], 0, sizeof data_[tile]);
  }

  void load(int tile, const void* from, int64_t stride) {
    zero(tile);
    for (int row = 0; row < config_.rows[tile]; ++row) {
      std::memcpy(data_[tile][row], static_cast<const char*>(from) + row * stride, config_.row_bytes[tile]);
    }
  }

  // Not inlined: g++ 12 follows an address that is null until there are sums.
  [[gnu::noinline]] void store(int tile, void* to, int64_t stride) const {
    check(tile);
    for (int row = 0; row < config_.rows[tile]; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, data_[tile][row], config_.row_bytes[tile]);
    }
  }

  void multiply_add(int c, int a, int b) {
    EXPERTMESH_CHECK(c != a && a != b && b != c, "tiles {}, {} and {}", c, a, b);
    for (const int tile : {c, a, b}) {
      check(tile);
      EXPERTMESH_CHECK(config_.row_bytes[tile] % 4 == 0, "tile {} has rows of {} bytes", tile, config_.row_bytes[tile]);
    }
    EXPERTMESH_CHECK(config_.rows[a] == config_.rows[c] && config_.row_bytes[b] == config_.row_bytes[c] &&
                         config_.row_bytes[a] / 4 == config_.rows[b],
                     "{} x {} bytes times {} x {} into {} x {}", config_.rows[a], config_.row_bytes[a], config_.rows[b],
                     config_.row_bytes[b], config_.rows[c], config_.row_bytes[c]);
    if (__builtin_cpu_supports("fma")) {
      multiply_add_fma(c, a, b);
    } else {
      multiply_add_rows(c, a, b);
    }
  }

 private:
  void check(int tile) const {
    EXPERTMESH_CHECK(is_configured_ && tile >= 0 && tile < 8 && config_.rows[tile] > 0, "tile {} is not configured",
                     tile);
  }

  // Subnormals count as zeros, in the operands and in every result.
  EXPERTMESH_INLINE static float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0F, x) : x; }

  EXPERTMESH_INLINE float bf16(int tile, int row, int column) const {
    uint16_t half;
    std::memcpy(&half, data_[tile][row] + ptrdiff_t{2} * column, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return flushed(x);
  }

  // Even and odd elements have sums of their own, from zero; the two are added, then to C.
  EXPERTMESH_INLINE void multiply_add_rows(int c, int a, int b) {
    const int pairs = config_.row_bytes[a] / 4, columns = config_.row_bytes[c] / 4;
    for (int m = 0; m < config_.rows[c]; ++m) {
      float sums[kAmxRows][2] = {};
      for (int k = 0; k < pairs; ++k) {
        for (int n = 0; n < columns; ++n) {
          for (int half = 0; half < 2; ++half) {
            sums[n][half] = flushed(__builtin_fmaf(bf16(a, m, 2 * k + half), bf16(b, k, 2 * n + half), sums[n][half]));
          }
        }
      }
      for (int n = 0; n < columns; ++n) {
        float to;
        std::memcpy(&to, data_[c][m] + ptrdiff_t{4} * n, sizeof to);
        to = flushed(flushed(to) + flushed(sums[n][0] + sums[n][1]));
        std::memcpy(data_[c][m] + ptrdiff_t{4} * n, &to, sizeof to);
      }
    }
  }

  [[gnu::target("avx2,fma")]] void multiply_add_fma(int c, int a, int b) { multiply_add_rows(c, a, b); }

  TileConfig config_;
  bool is_configured_ = false;
  unsigned char data_[8][kAmxRows][kAmxRowBytes] = {};
};

inline TileFile& tile_file() {
  static thread_local TileFile file;
  return file;
}

struct EmulatedTiles {
  static void configure(const TileConfig& config) { tile_file().configure(config); }
  static void release() { tile_file().release(); }
  template <int kTile>
  static void zero() {
    tile_file().zero(kTile);
  }
  template <int kTile>
  static void load(const void* from, int64_t stride) {
    tile_file().load(kTile, from, stride);
  }
  template <int kTile>
  static void store(void* to, int64_t stride) {
    tile_file().store(kTile, to, stride);
  }
  template <int kC, int kA, int kB>
  static void multiply_add() {
    tile_file().multiply_add(kC, kA, kB);
  }

  static TwoRounded round(Vec low, Vec high) {
    TwoRounded rounded;
    for (int i = 0; i < kLanes; ++i) {
      rounded[i] = base::float_to_bf16(low[i]);
      rounded[kLanes + i] = base::float_to_bf16(high[i]);
    }
    return rounded;
  }
  static void store_around(void* to, TwoRounded v) {
    EXPERTMESH_CHECK(reinterpret_cast<uintptr_t>(to) % sizeof v == 0, "{}", to);
    std::memcpy(to, &v, sizeof v);
  }
};

}  // namespace expertmesh::ops::cpu
