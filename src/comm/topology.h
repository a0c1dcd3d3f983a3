// SPDX-License-Identifier: Apache-2.0
// How the ranks are divided: pure arithmetic, no communication.
//   rank = ((edp * efsdp_size + efsdp) * ep_size + ep) * cp_size + cp, and dp = rank / cp_size.
// Errors: kConfig with the topic "config/KEY" of the key to change, both values and the sizes that would work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace expertmesh::comm {

// What the user asked for; nothing = follows from the rest.
struct TopologyRequest {
  int64_t cp_size = 1;
  std::optional<int64_t> dp_size = {};
  int64_t ep_size = 1;
  std::optional<int64_t> efsdp_size = {};
  int64_t mp_replicate_size = 1;
  std::optional<int64_t> mp_shard_size = {};
  std::optional<int64_t> num_experts = {};          // of the model: ep_size must divide it
  std::optional<int64_t> num_attention_heads = {};  // of the model: cp_size must divide it
};

// The axes that ranks form groups along. kExpertReplicas is (edp, expert_cp): the ranks that hold the same expert
// shard.
enum class Axis { kWorld, kDp, kCp, kMpReplicate, kMpShard, kEdp, kEfsdp, kEp, kExpertCp, kExpertReplicas };

// "world", "dp", "cp", "mp_replicate", "mp_shard", "edp", "efsdp", "ep", "expert_cp", "expert_replicas".
std::string_view axis_name(Axis axis);

// A rank's place on every axis.
struct Coordinates {
  int dp = 0, cp = 0;
  int mp_replicate = 0, mp_shard = 0;
  int edp = 0, efsdp = 0, ep = 0;  // and expert_cp == cp
  bool operator==(const Coordinates&) const = default;
};

struct Topology {
  int world = 1;
  int dp = 1, cp = 1;                  // data mesh
  int mp_replicate = 1, mp_shard = 1;  // FSDP mesh
  int edp = 1, efsdp = 1, ep = 1;      // expert mesh, with expert_cp == cp
  bool operator==(const Topology&) const = default;

  int size(Axis axis) const;
  Coordinates coordinates(int rank) const;
  int rank_at(int edp_index, int efsdp_index, int ep_index, int cp_index) const;
  // The partition of all ranks into groups along an axis; groups sorted by their first rank.
  std::vector<std::vector<int>> groups(Axis axis) const;
  // "dp 1, cp 0, edp 0, efsdp 1, ep 1": axes of size 1 are left out ("" for one rank).
  std::string describe_rank(int rank) const;
  // The table printed at start.
  std::string table() const;
};

// Checks everything; the first fault found is thrown. Without a model's numbers their checks are left out.
Topology make_topology(int world, const TopologyRequest& request);

// "ep_size 8 does not divide num_experts 4": for callers that learn the model later. `dp` limits what is offered.
void check_expert_count(int64_t ep_size, int64_t num_experts, int dp);
void check_head_count(int64_t cp_size, int64_t num_attention_heads, int world);

}  // namespace expertmesh::comm
