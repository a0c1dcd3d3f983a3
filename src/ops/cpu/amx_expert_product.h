// SPDX-License-Identifier: Apache-2.0
// The product of expert_kernels.h on AMX tiles, over an engine (amx.h). Packed B is tiles as it is, and so are the rows
// of A where they lie, whatever their stride: copies cost more than what rows lose that crowd a set of the first cache.
// Only rows behind a list, fewer than a tile has, and what the depth leaves beyond whole tiles are copied, and
// completed with zeros, so that nothing is read past an end. The last panel of rows begins early enough to be whole:
// what it computes again has the same bits. While a block is summed, the 32 x 64 results before it are rounded and
// written, row by row: two cache lines at once, since memory takes them at nearly twice the rate of single ones. Rows
// of A from memory are left to the processor's own prefetching: asked for ahead, they took the line buffers that tiles
// need. No torch. Measured: docs/results/amx.md.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cpu/amx_product.h"
#include "ops/cpu/expert_kernels.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kAmxGroup = 2 * kAmxSide;           // columns that are written together
constexpr int64_t kAmxStripColumns = 256;             // of B that meet a panel, at most
constexpr int64_t kAmxStripBytes = int64_t{1} << 20;  // of B: with the panels of A in the second cache

struct AmxScratch {
  struct alignas(64) Tile {
    std::byte bytes[kAmxTileBytes];
  };
  Tile a_tails[2];
  Tile b_tails[kAmxStripColumns / kAmxRows];
  alignas(64) float sums[2][kAmxSide * kAmxGroup];
  int current = 0;          // of the sums
  std::vector<Tile> panel;  // a copy of rows of A

  float* next_sums() { return sums[current ^= 1]; }
};

// A group of sums on its way to C.
template <typename Engine>
struct AmxRows {
  const float* from = nullptr;  // rows of kAmxGroup
  IndexedRows<Bf16> c;
  int64_t row = 0, end = 0;  // not yet written
  int64_t column = 0, columns = 0;
  bool is_read_late = false;

  // The next `rows`, or those that are left.
  EXPERTMESH_INLINE void write(int64_t rows) {
    const int64_t stop = std::min(row + rows, end);
    if (columns < kAmxGroup) {
      for (; row < stop; ++row, from += kAmxGroup) write_part(c.row(row) + column);
    } else if (is_read_late) {
      for (; row < stop; ++row, from += kAmxGroup) {
        Bf16* to = c.row(row) + column;
        if (reinterpret_cast<uintptr_t>(to) % kAmxRowBytes == 0) {
          const TwoRounded first = rounded(0), second = rounded(1);
          Engine::store_around(to, first);
          Engine::store_around(to + kAmxSide, second);
        } else {
          write_whole(to);
        }
      }
    } else {
      for (; row < stop; ++row, from += kAmxGroup) write_whole(c.row(row) + column);
    }
  }

 private:
  EXPERTMESH_INLINE void write_whole(Bf16* to) const {
    const TwoRounded first = rounded(0), second = rounded(1);
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + kAmxSide, &second, sizeof second);
  }
  EXPERTMESH_INLINE TwoRounded rounded(int half) const {
    return Engine::round(load(from + half * kAmxSide), load(from + half * kAmxSide + kLanes));
  }
  EXPERTMESH_INLINE void write_part(Bf16* to) const {
    for (int64_t done = 0, half = 0; done < columns; done += kAmxSide, ++half) {
      const TwoRounded some = rounded(static_cast<int>(half));
      std::memcpy(to + done, &some, static_cast<size_t>(std::min(columns - done, kAmxSide)) * sizeof(Bf16));
    }
  }
};

// Copies `steps` * 32 elements from `begin` on of `rows` <= 32 rows into tiles [rows / 16][steps][16][32], with zeros
// past `depth` and past the last row.
EXPERTMESH_INLINE void copy_panel(IndexedRows<const Bf16> a, int64_t rows, int64_t begin, int64_t steps, int64_t depth,
                                  AmxScratch::Tile* out) {
  if (steps == 0) return;  // then there may be no tiles
  const int64_t padded_rows = rows > kAmxRows ? kAmxSide : kAmxRows;
  for (int64_t row = 0; row < padded_rows; ++row) {
    std::byte* to = out[row / kAmxRows * steps].bytes + row % kAmxRows * kAmxRowBytes;
    const Bf16* from = row < rows ? a.row(row) + begin : nullptr;
    for (int64_t s = 0; s < steps; ++s, to += kAmxTileBytes) {
      const int64_t elements = from ? std::clamp<int64_t>(depth - begin - s * kAmxDepth, 0, kAmxDepth) : 0;
      if (elements == kAmxDepth) [[likely]] {
        std::memcpy(to, from + s * kAmxDepth, kAmxRowBytes);
      } else {
        std::memset(to, 0, kAmxRowBytes);
        if (elements > 0) std::memcpy(to, from + s * kAmxDepth, static_cast<size_t>(elements) * sizeof(Bf16));
      }
    }
  }
}

// Two rows of weights side by side, for the next product: some pairs of rows a step. Rows are asked for ahead: they are
// often a power of two apart, which the processor does not foresee.
class PackAhead {
 public:
  EXPERTMESH_INLINE PackAhead(const PackedNext& pack, int64_t steps) : pack_(pack), pairs_((pack.depth + 1) / 2) {
    per_step_ = amx_parts(pairs_, std::max<int64_t>(steps, 1));
  }

  EXPERTMESH_INLINE void step() {
    if (done_ < pairs_) advance(std::min(done_ + per_step_, pairs_));
  }
  EXPERTMESH_INLINE void finish() { advance(pairs_); }

 private:
  using Halves = uint16_t __attribute__((vector_size(64)));
  static constexpr int64_t kAhead = 16;  // pairs of rows

  EXPERTMESH_INLINE void advance(int64_t end) {
    for (; done_ < end; ++done_) {
      const Bf16* low = pack_.rows + 2 * done_ * pack_.stride;
      if (done_ + kAhead < pairs_) {
        const Bf16* ahead = low + 2 * kAhead * pack_.stride;
        for (int64_t column = 0; column < pack_.columns; column += 2 * kLanes) {
          __builtin_prefetch(ahead + column, 0, 2);
          __builtin_prefetch(ahead + pack_.stride + column, 0, 2);
        }
      }
      const Bf16* high = 2 * done_ + 1 < pack_.depth ? low + pack_.stride : nullptr;
      uint32_t* to = pack_.out + done_ * kLanes;
      for (int64_t column = 0; column < pack_.columns; column += 2 * kLanes, to += 2 * pairs_ * kLanes) {
        const int64_t columns = pack_.columns - column;
        const Halves a = load_halves(low + column, columns);
        const Halves b = high ? load_halves(high + column, columns) : Halves{};
        const Halves first = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8,
                                                     40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
        std::memcpy(to, &first, sizeof first);
        if (columns <= kLanes) break;
        const Halves second =
            __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25,
                                    57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
        std::memcpy(to + pairs_ * kLanes, &second, sizeof second);
      }
    }
  }

  EXPERTMESH_INLINE static Halves load_halves(const Bf16* from, int64_t elements) {
    Halves v{};
    if (elements >= 2 * kLanes) [[likely]] {
      std::memcpy(&v, from, sizeof v);
    } else {
      std::memcpy(&v, from, static_cast<size_t>(elements) * sizeof(Bf16));
    }
    return v;
  }

  const PackedNext& pack_;
  int64_t pairs_, per_step_ = 0, done_ = 0;
};

// What goes on beside the sums.
template <typename Engine>
class AmxBackground {
 public:
  AmxBackground(const PackedNext& pack, int64_t steps) : pack_(pack, steps) {}

  EXPERTMESH_INLINE void step() {
    pack_.step();
    if (is_fresh_) {
      is_fresh_ = false;
    } else {
      rows().write(rows_a_step_);
    }
  }
  EXPERTMESH_INLINE void stored() {
    if (!has_next_) return;
    rows().write(kAmxSide);
    current_ ^= 1;
    has_next_ = false;
    is_fresh_ = true;
  }
  EXPERTMESH_INLINE void finish() {
    stored();
    rows().write(kAmxSide);
    pack_.finish();
  }

  // A group whose last block is still in registers, and the steps of the next group. The rows before it are written.
  // Members are set one by one: copied as a whole, they would be waited for.
  EXPERTMESH_INLINE void follow(const ExpertProduct& product, const float* sums, int64_t row, int64_t rows,
                                int64_t column, int64_t columns, int64_t steps) {
    AmxRows<Engine>& next = rows_[current_ ^ 1];
    next.from = sums;
    next.c.data = product.c.data;
    next.c.stride = product.c.stride;
    next.c.index = product.c.index;
    next.row = row;
    next.end = row + rows;
    next.column = column;
    next.columns = columns;
    next.is_read_late = product.is_read_late;
    has_next_ = true;
    rows_a_step_ = amx_parts(kAmxSide, std::max<int64_t>(2 * steps - 2, 1));
  }

 private:
  EXPERTMESH_INLINE AmxRows<Engine>& rows() { return rows_[current_]; }

  PackAhead pack_;
  AmxRows<Engine> rows_[2];
  int current_ = 0;
  int64_t rows_a_step_ = kAmxSide;
  bool has_next_ = false;
  bool is_fresh_ = false;  // what rows() reads is on its way to the first cache: a step later nobody waits for it
};

// The last tile, where the depth is no multiple of 32, of each of the blocks of 16 columns that `columns` have.
EXPERTMESH_INLINE void copy_tails(const uint32_t* b, int64_t depth, int64_t columns, std::byte* out) {
  const int64_t pairs = (depth + 1) / 2, whole = depth / kAmxDepth * kAmxRows;
  const int64_t left = (pairs - whole) * kAmxRowBytes;
  for (int64_t column = 0; column < columns; column += kLanes, b += pairs * kLanes, out += kAmxTileBytes) {
    std::memcpy(out, b + whole * kLanes, static_cast<size_t>(left));
    std::memset(out + left, 0, static_cast<size_t>(kAmxTileBytes - left));
  }
}

// Where the tiles of a panel of A are. The second 16 rows may overlap the first.
EXPERTMESH_INLINE TileBlock place_panel(IndexedRows<const Bf16> a, int64_t rows, int64_t depth, AmxScratch& scratch) {
  const int64_t whole = depth / kAmxDepth;
  TileBlock block;
  block.steps = whole;
  block.sums.c_stride = kAmxGroup * sizeof(float);
  const bool lies_as_tiles = a.index == nullptr && rows >= kAmxRows;
  const int64_t second = lies_as_tiles ? rows - kAmxRows : kAmxRows;
  block.sums.c_tile = second * block.sums.c_stride;
  if (lies_as_tiles) {
    block.a = a.data;
    block.a_stride = a.stride * static_cast<int64_t>(sizeof(Bf16));
    block.a_step = kAmxRowBytes;
    block.a_tile = second * block.a_stride;
  } else {
    const auto tiles = static_cast<size_t>(2 * whole);
    if (scratch.panel.size() < tiles) scratch.panel.resize(tiles);
    copy_panel(a, rows, 0, whole, depth, scratch.panel.data());
    block.a = scratch.panel.data();
    block.a_tile = whole * kAmxTileBytes;
  }
  if (depth % kAmxDepth == 0) return block;
  const int64_t begin = whole * kAmxDepth;
  if (lies_as_tiles) {
    copy_panel(a, kAmxRows, begin, 1, depth, scratch.a_tails);
    copy_panel(a.from(second), kAmxRows, begin, 1, depth, scratch.a_tails + 1);
  } else {
    copy_panel(a, rows, begin, 1, depth, scratch.a_tails);
  }
  block.a_tail = scratch.a_tails;
  return block;
}

// Columns [column, column + columns) of one panel of rows.
template <typename Engine>
EXPERTMESH_INLINE void multiply_panel(const ExpertProduct& product, int64_t row, int64_t rows, int64_t column,
                                      int64_t columns, AmxScratch& scratch, TileBlocks<Engine>& blocks,
                                      AmxBackground<Engine>& background) {
  const int64_t pairs = (product.depth + 1) / 2;
  TileBlock block = place_panel(product.a.from(row), rows, product.depth, scratch);
  block.b_tile = pairs * kAmxRowBytes;
  for (int64_t first = 0; first < columns; first += kAmxGroup) {
    const int64_t group = std::min(columns - first, kAmxGroup);
    float* sums = scratch.next_sums();
    for (int64_t i = 0; i < group; i += kAmxSide) {
      block.b = product.b + (column + first + i) * pairs;
      if (block.a_tail != nullptr) block.b_tail = scratch.b_tails + (first + i) / kAmxRows;
      block.sums.c = sums + i;
      blocks.multiply(block, amx_parts(rows, kAmxRows), amx_parts(std::min(group - i, kAmxSide), kAmxRows), background);
    }
    background.follow(product, sums, row, rows, column + first, group, block.steps);
  }
}

// Columns of B that share the second cache with panels of A.
constexpr int64_t amx_strip_columns(int64_t depth) {
  const int64_t row_bytes = std::max<int64_t>(depth, 1) * static_cast<int64_t>(sizeof(Bf16));
  return std::clamp(kAmxStripBytes / row_bytes / kAmxGroup * kAmxGroup, kAmxGroup, kAmxStripColumns);
}

template <typename Engine>
EXPERTMESH_INLINE void multiply_on_tiles(const ExpertProduct& product) {
  static thread_local const std::unique_ptr<AmxScratch> scratch(new AmxScratch);
  const int64_t pairs = (product.depth + 1) / 2;
  const int64_t num_blocks = amx_parts(product.rows, kAmxSide) * amx_parts(product.columns, kAmxSide);
  AmxBackground<Engine> background(product.pack, num_blocks * (product.depth / kAmxDepth));
  TileBlocks<Engine> blocks;
  const TileScope<Engine> scope;
  const int64_t strip = amx_strip_columns(product.depth);
  for (int64_t column = 0; column < product.columns; column += strip) {
    const int64_t columns = std::min(product.columns - column, strip);
    if (product.depth % kAmxDepth != 0) {
      copy_tails(product.b + column * pairs, product.depth, columns, scratch->b_tails[0].bytes);
    }
    for (int64_t row = 0; row < product.rows; row += kAmxSide) {
      const int64_t rows = std::min(product.rows, product.rows - row > kAmxRows ? kAmxSide : kAmxRows);
      multiply_panel(product, std::min(row, product.rows - rows), rows, column, columns, *scratch, blocks, background);
    }
  }
  blocks.finish();
  background.finish();
}

}  // namespace expertmesh::ops::cpu
