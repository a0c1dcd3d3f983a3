// SPDX-License-Identifier: Apache-2.0
// The product of expert_kernels.h on AMX tiles, over an engine (amx.h). Packed B is tiles as it is. Panels of 32
// rows of A are read where they lie if that suits the first cache, else they are copied into tiles of their own once
// for all columns: rows that are a multiple of 2048 bytes apart crowd a tile into one or two sets of the cache. What is
// not a whole tile is always copied and completed with zeros, so nothing is read past an end. While a block of 32 x 32
// is summed, the one before it is rounded and written, row by row, and what is needed next is fetched. No torch.
// Measured on a first cache of 48 KiB in 12 ways: docs/results/amx.md.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/cpu/amx_product.h"
#include "ops/cpu/expert_kernels.h"

namespace expertmesh::ops::cpu {

constexpr int64_t kAmxSide = 2 * kAmxRows;  // rows and columns of a block of C
constexpr int64_t kAmxPanelSteps = 64;      // of depth 32: a panel of A is 128 KiB, in the second cache
constexpr int64_t kAmxStripColumns = 256;   // of B that meet a panel
constexpr int64_t kAmxStripBlocks = kAmxStripColumns / kAmxSide;

constexpr int64_t amx_parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

struct AmxScratch {
  alignas(64) std::byte panel[2 * kAmxPanelSteps * kAmxTileBytes];
  alignas(64) std::byte a_tails[2 * kAmxTileBytes];
  alignas(64) std::byte b_tails[2 * kAmxStripBlocks * kAmxTileBytes];
  alignas(64) float sums[kAmxStripBlocks * kAmxSide * kAmxSide];
};

// A block of sums on its way to C.
template <typename Engine>
struct AmxRows {
  const float* from = nullptr;  // rows of kAmxSide
  IndexedRows<Bf16> c;
  int64_t row = 0, end = 0;  // not yet written
  int64_t column = 0, columns = 0;
  bool is_read_late = false;

  // The next `rows`, or those that are left.
  EXPERTMESH_INLINE void write(int64_t rows) {
    const int64_t stop = std::min(row + rows, end);
    if (columns < kAmxSide) {
      write_each(stop, [&](Bf16* to, const TwoRounded& rounded) __attribute__((always_inline)) {
        std::memcpy(to, &rounded, static_cast<size_t>(columns) * sizeof(Bf16));
      });
    } else if (is_read_late) {
      write_each(stop, [](Bf16* to, const TwoRounded& rounded) __attribute__((always_inline)) {
        if (reinterpret_cast<uintptr_t>(to) % sizeof rounded == 0) {
          Engine::store_around(to, rounded);
        } else {
          std::memcpy(to, &rounded, sizeof rounded);
        }
      });
    } else {
      write_each(stop, [](Bf16* to, const TwoRounded& rounded)
                           __attribute__((always_inline)) { std::memcpy(to, &rounded, sizeof rounded); });
    }
  }

 private:
  template <typename Store>
  EXPERTMESH_INLINE void write_each(int64_t stop, const Store& store) {
    for (; row < stop; ++row, from += kAmxSide) {
      store(c.row(row) + column, Engine::round(load(from), load(from + kLanes)));
    }
  }
};

// Copies `steps` * 32 elements from `begin` on of `rows` <= 32 rows into tiles [rows / 16][steps][16][32], with zeros
// past `depth` and past the last row: row by row, some steps of each at a time, whose cache lines come one after the
// other.
class PanelCopy {
 public:
  static constexpr int64_t kSteps = 8;  // at a time

  PanelCopy() = default;
  EXPERTMESH_INLINE PanelCopy(IndexedRows<const Bf16> a, int64_t rows, int64_t begin, int64_t steps, int64_t depth,
                              std::byte* out)
      : a_(a),
        rows_(rows),
        padded_rows_(rows > kAmxRows ? kAmxSide : kAmxRows),
        begin_(begin),
        steps_(steps),
        depth_(depth),
        out_(out) {}

  // The first kSteps steps.
  EXPERTMESH_INLINE void start() { advance(padded_rows_); }
  // What a step has to leave behind it, so that none is reached before its tiles are there.
  EXPERTMESH_INLINE void step() {
    if (first_ < steps_) advance(padded_rows_ / kSteps);
  }
  EXPERTMESH_INLINE void finish() {
    while (first_ < steps_) advance(padded_rows_);
  }

 private:
  EXPERTMESH_INLINE void advance(int64_t rows) {
    const int64_t last = std::min(first_ + kSteps, steps_);
    for (const int64_t end = row_ + rows; row_ < end; ++row_) {
      std::byte* to = out_ + (row_ / kAmxRows * steps_ + first_) * kAmxTileBytes + row_ % kAmxRows * kAmxRowBytes;
      const int64_t at = begin_ + first_ * kAmxDepth;
      if (row_ < rows_ && at + (last - first_) * kAmxDepth <= depth_) [[likely]] {
        const Bf16* from = a_.row(row_) + at;
        for (int64_t s = first_; s < last; ++s, from += kAmxDepth, to += kAmxTileBytes) {
          std::memcpy(to, from, kAmxRowBytes);
        }
      } else {
        copy_ends(at, last, to);
      }
    }
    if (row_ < padded_rows_) return;
    row_ = 0;
    first_ += kSteps;
  }

  void copy_ends(int64_t at, int64_t last, std::byte* to) const {
    for (int64_t s = first_; s < last; ++s, at += kAmxDepth, to += kAmxTileBytes) {
      const int64_t elements = row_ < rows_ ? std::clamp<int64_t>(depth_ - at, 0, kAmxDepth) : 0;
      std::memset(to, 0, kAmxRowBytes);
      if (elements > 0) std::memcpy(to, a_.row(row_) + at, static_cast<size_t>(elements) * sizeof(Bf16));
    }
  }

  IndexedRows<const Bf16> a_;
  int64_t rows_ = 0, padded_rows_ = 0, begin_ = 0, steps_ = 0, depth_ = 0;
  std::byte* out_ = nullptr;
  int64_t row_ = 0, first_ = 0;  // next to be copied
};

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
          __builtin_prefetch(ahead + column);
          __builtin_prefetch(ahead + pack_.stride + column);
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

// Asks for the lines of rows in even steps. Rows past the last one may be asked for: nothing is read.
class FetchAhead {
 public:
  FetchAhead() = default;
  EXPERTMESH_INLINE FetchAhead(const Bf16* rows, int64_t row_elements, int64_t num_rows, int64_t steps)
      : next_(reinterpret_cast<const std::byte*>(rows)),
        end_(next_ + row_elements * num_rows * static_cast<int64_t>(sizeof(Bf16))) {
    lines_a_step_ = amx_parts(amx_parts(end_ - next_, kAmxRowBytes), std::max<int64_t>(steps, 1));
  }

  EXPERTMESH_INLINE void step() {
    for (int64_t i = 0; i < lines_a_step_ && next_ < end_; ++i, next_ += kAmxRowBytes) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t lines_a_step_ = 0;
};

// What goes on beside the sums.
template <typename Engine>
struct AmxBackground {
  PackAhead pack;
  AmxRows<Engine> rows = {};
  int64_t rows_a_step = kAmxSide;
  PanelCopy copy = {};
  FetchAhead fetch = {};

  EXPERTMESH_INLINE void step() {
    copy.step();
    fetch.step();
    pack.step();
    rows.write(rows_a_step);
  }
  EXPERTMESH_INLINE void finish() { rows.write(kAmxSide); }
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

// Whether tiles are better loaded from where `rows` rows lie than from a copy: whole cache lines, few in a set of the
// first cache, or with no columns that a copy would serve again.
EXPERTMESH_INLINE bool lie_as_tiles(IndexedRows<const Bf16> a, int64_t rows, int64_t columns) {
  constexpr int64_t kCrowded = 2048;
  const int64_t stride = a.stride * static_cast<int64_t>(sizeof(Bf16));
  return a.index == nullptr && rows % kAmxRows == 0 && reinterpret_cast<uintptr_t>(a.data) % kAmxRowBytes == 0 &&
         stride % kAmxRowBytes == 0 && (stride % kCrowded != 0 || columns <= kAmxSide);
}

// Where the tiles of a panel of A are, for the steps [first, first + steps). Those that have to be copied are so while
// the first block is summed: `copy` has begun with them.
EXPERTMESH_INLINE void place_panel(IndexedRows<const Bf16> a, int64_t rows, int64_t columns, int64_t first,
                                   int64_t steps, int64_t depth, AmxScratch& scratch, TileBlock& block,
                                   PanelCopy& copy) {
  const int64_t begin = first * kAmxDepth, whole = std::min(steps, depth / kAmxDepth - first);
  if (lie_as_tiles(a, rows, columns)) {
    block.a = a.data + begin;
    block.a_stride = a.stride * static_cast<int64_t>(sizeof(Bf16));
    block.a_step = kAmxRowBytes;
    block.a_tile = kAmxRows * block.a_stride;
  } else {
    copy = PanelCopy(a, rows, begin, whole, depth, scratch.panel);
    copy.start();
    block.a = scratch.panel;
    block.a_tile = whole * kAmxTileBytes;
  }
  block.steps = whole;
  if (whole == steps) return;
  PanelCopy(a, rows, begin + whole * kAmxDepth, 1, depth, scratch.a_tails).finish();
  block.a_tail = scratch.a_tails;
}

// Columns [column, column + columns) of one panel of rows.
template <typename Engine>
EXPERTMESH_INLINE void multiply_panel(const ExpertProduct& product, int64_t row, int64_t column, int64_t columns,
                                      AmxScratch& scratch, AmxBackground<Engine>& background) {
  const int64_t rows = std::min(product.rows - row, kAmxSide), pairs = (product.depth + 1) / 2;
  const int64_t all_steps = amx_parts(product.depth, kAmxDepth);
  const uint32_t* b = product.b + column * pairs;
  if (product.is_a_far && product.a.index == nullptr) {
    const int64_t steps = all_steps * amx_parts(columns, kAmxSide);
    background.fetch = FetchAhead(product.a.row(row) + rows * product.a.stride, product.a.stride, rows, steps);
  }
  for (int64_t first = 0; first == 0 || first < all_steps; first += kAmxPanelSteps) {
    const int64_t steps = std::min(all_steps - first, kAmxPanelSteps);
    const bool is_last = first + steps == all_steps;
    TileBlock block;
    place_panel(product.a.from(row), rows, columns, first, steps, product.depth, scratch, block, background.copy);
    block.b_tile = pairs * kAmxRowBytes;
    block.c_stride = kAmxSide * sizeof(float);
    block.adds = first > 0;
    background.rows_a_step = amx_parts(kAmxSide, std::max<int64_t>(block.steps, 1));
    for (int64_t i = 0; i * kAmxSide < columns; ++i) {
      const int64_t block_columns = std::min(columns - i * kAmxSide, kAmxSide);
      block.b = b + (i * kAmxSide * pairs + first * kAmxRows * kLanes);
      if (block.steps < steps) block.b_tail = scratch.b_tails + i * 2 * kAmxTileBytes;
      // Sums that are not complete keep a place of their own.
      block.c = scratch.sums + (all_steps > kAmxPanelSteps ? i * kAmxSide * kAmxSide : 0);
      multiply_tiles<Engine>(block, amx_parts(rows, kAmxRows), amx_parts(block_columns, kAmxRows), background);
      if (!is_last) continue;
      background.rows = {.from = block.c,
                         .c = product.c,
                         .row = row,
                         .end = row + rows,
                         .column = column + i * kAmxSide,
                         .columns = block_columns,
                         .is_read_late = product.is_read_late};
    }
  }
}

template <typename Engine>
EXPERTMESH_INLINE void multiply_on_tiles(const ExpertProduct& product) {
  static thread_local const std::unique_ptr<AmxScratch> scratch(new AmxScratch);
  const int64_t pairs = (product.depth + 1) / 2;
  const int64_t blocks = amx_parts(product.rows, kAmxSide) * amx_parts(product.columns, kAmxSide);
  AmxBackground<Engine> background{.pack = PackAhead(product.pack, blocks * (product.depth / kAmxDepth))};
  const TileScope<Engine> scope;
  for (int64_t column = 0; column < product.columns; column += kAmxStripColumns) {
    const int64_t columns = std::min(product.columns - column, kAmxStripColumns);
    if (product.depth % kAmxDepth != 0)
      copy_tails(product.b + column * pairs, product.depth, columns, scratch->b_tails);
    for (int64_t row = 0; row < product.rows; row += kAmxSide) {
      multiply_panel(product, row, column, columns, *scratch, background);
    }
  }
  background.finish();
  background.pack.finish();
  if (product.is_read_late) Engine::finish_stores();
}

}  // namespace expertmesh::ops::cpu
