// SPDX-License-Identifier: Apache-2.0
// A collective as messages, and messages as its result. No torch, no network: `Layout` says how many bytes go where,
// the engine moves them. Every collective starts with an exchange of frames of one fixed size, which name the call and
// carry small messages whole: a rank that makes another call is found there, before sizes that differ meet in Gloo
// (which ends the process then).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/collective.h"

namespace expertmesh::comm {

// How a collective travels.
enum class Route { kAllGather, kAllToAll, kBroadcast };

struct Layout {
  Route route = Route::kAllGather;
  std::vector<int64_t> send;  // bytes to each rank; for kAllGather and kBroadcast one size, of every rank
  std::vector<int64_t> recv;  // bytes from each rank
  int64_t send_total() const;
  int64_t recv_total() const;
};

// The first (for all_reduce of many elements: of two) exchange of a collective. `size` and `rank` are of the group.
Layout layout_of(const Collective& collective, int size, int rank);
bool is_two_step(const Collective& collective, int size);

// All messages, one after the other.
void pack(const Collective& collective, const Layout& layout, int rank, std::byte* send);
void unpack(const Collective& collective, const Layout& layout, int rank, const std::byte* recv);

// all_reduce of many elements: the slices that this rank reduced (unpack put them in place) to everybody.
Layout second_layout(const Collective& collective, int size);
void pack_second(const Collective& collective, const Layout& layout, int rank, std::byte* send);
void unpack_second(const Collective& collective, const Layout& layout, int rank, const std::byte* recv);

// Frames: one to each rank, kFrameBytes each.
constexpr int64_t kFrameBytes = 512;
// True where every message of this rank fits into its frame; only then they are written into it.
bool fits_frames(const Layout& layout, int rank, const Collective& collective);
void write_frames(const Collective& collective, uint64_t sequence, const Layout& layout, int rank, std::byte* frames);
// The first rank whose frame does not fit to this rank's call.
struct Stranger {
  int from = 0;  // group rank
  bool is_other_call = true;
  int64_t sent_rows = 0;  // where it is the same all_to_all with other counts
  int64_t expected_rows = 0;
};
std::optional<Stranger> find_stranger(const Collective& collective, uint64_t sequence, int size,
                                      const std::byte* frames);
// True where all messages came in the frames.
bool is_all_in_frames(int size, const std::byte* frames);
// The messages of the frames as unpack() wants them.
void read_frames(const Collective& collective, const Layout& layout, const std::byte* frames, std::byte* recv);

}  // namespace expertmesh::comm
