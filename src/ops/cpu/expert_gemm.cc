// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/expert_gemm.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cpu/expert_tiles.h"

namespace expertmesh::ops::cpu {
namespace {

// nullptr: this processor has neither.
const ExpertTiles* find_tiles() {
  const Isa isa = processor_isa();
  if (isa == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16")) return &kExpertTilesAvx512;
  return isa == Isa::kBaseline ? nullptr : &kExpertTilesAvx2;
}

std::atomic<const ExpertTiles*> g_forced{nullptr};

const ExpertTiles* expert_tiles() {
  static const ExpertTiles* const tiles = find_tiles();
  const ExpertTiles* forced = g_forced.load(std::memory_order_relaxed);
  return forced ? forced : tiles;
}

}  // namespace

void TEST_use_expert_tiles(const ExpertTiles* tiles) { g_forced.store(tiles); }

bool has_expert_gemm() { return expert_tiles() != nullptr; }

void Packed::resize(int64_t columns, int64_t depth) {
  EXPERTMESH_CHECK(has_expert_gemm());
  columns_ = columns;
  depth_ = depth;
  const size_t size = static_cast<size_t>(blocks() * pairs() * kLanes) + kLanes;
  if (storage_.size() < size) storage_.resize(size);
}

// The first element on a cache line of its own.
const uint32_t* Packed::data() const {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  return storage_.data() + ((64 - address % 64) % 64) / sizeof(uint32_t);
}

void Packed::pack_transposed(const Bf16* rows, int64_t row_stride, int64_t columns, int64_t depth) {
  resize(columns, depth);
  const ExpertTiles& tiles = *expert_tiles();
  uint32_t* out = const_cast<uint32_t*>(data());
  for (int64_t block = 0; block < blocks(); ++block) {
    const int64_t first = block * kLanes;
    tiles.pack_block_transposed(rows + first * row_stride, row_stride, columns - first, depth,
                                out + block * pairs() * kLanes);
  }
}

void Packed::pack(const Bf16* rows, int64_t row_stride, const int64_t* index, int64_t columns, int64_t depth) {
  resize(columns, depth);
  const ExpertTiles& tiles = *expert_tiles();
  uint32_t* out = const_cast<uint32_t*>(data());
  const IndexedRows<const Bf16> source{rows, row_stride, index};
  for (int64_t k = 0; k < depth; k += 2) {
    tiles.pack_pair(source.row(k), k + 1 < depth ? source.row(k + 1) : nullptr, columns, pairs() * kLanes,
                    out + k / 2 * kLanes);
  }
}

void expert_gemm(IndexedRows<const Bf16> a, int64_t rows, const Packed& b, IndexedRows<Bf16> c) {
  const ExpertTiles& tiles = *expert_tiles();
  ExpertTile tile;
  tile.b_block = b.pairs() * kLanes;
  tile.whole_pairs = b.depth() / 2;
  tile.has_odd = b.depth() % 2 != 0;
  for (int64_t column = 0; column < b.columns(); column += tiles.blocks * kLanes) {
    tile.columns = std::min(tiles.blocks * kLanes, b.columns() - column);
    tile.b = b.data() + column / kLanes * tile.b_block;
    for (int64_t first = 0; first < rows; first += kMaxTileRows) {
      const int64_t tile_rows = std::min(kMaxTileRows, rows - first);
      for (int64_t i = 0; i < tile_rows; ++i) {
        tile.a[i] = reinterpret_cast<const Pair*>(a.row(first + i));
        tile.c[i] = c.row(first + i) + column;
      }
      tiles.run(tile, tile_rows);
    }
  }
}

void expert_gemm_transposed(const Packed& a, const Packed& b, Bf16* c, int64_t row_stride) {
  EXPERTMESH_CHECK(a.depth() == b.depth(), "{} and {}", a.depth(), b.depth());
  const ExpertTiles& tiles = *expert_tiles();
  ExpertTile tile;
  tile.a_step = kLanes;
  tile.b_block = b.pairs() * kLanes;
  tile.whole_pairs = b.pairs();  // the packed halves past the end are zeros on both sides
  for (int64_t column = 0; column < b.columns(); column += tiles.blocks * kLanes) {
    tile.columns = std::min(tiles.blocks * kLanes, b.columns() - column);
    tile.b = b.data() + column / kLanes * tile.b_block;
    for (int64_t row = 0; row < a.columns();) {
      const int64_t inside = row % kLanes;
      const int64_t tile_rows = std::min({kMaxTileRows, kLanes - inside, a.columns() - row});
      const uint32_t* block = a.data() + row / kLanes * a.pairs() * kLanes + inside;
      for (int64_t i = 0; i < tile_rows; ++i) {
        tile.a[i] = block + i;
        tile.c[i] = c + (row + i) * row_stride + column;
      }
      tiles.run(tile, tile_rows);
      row += tile_rows;
    }
  }
}

}  // namespace expertmesh::ops::cpu
