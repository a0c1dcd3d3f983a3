// SPDX-License-Identifier: Apache-2.0
#include "comm/topology.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/check.h"

namespace expertmesh::comm {
namespace {

using base::Code;
using base::make_error;

std::vector<int64_t> divisors(int64_t value) {
  std::vector<int64_t> list;
  for (int64_t d = 1; d <= value; ++d) {
    if (value % d == 0) list.push_back(d);
  }
  return list;
}

// "1", "1 or 2", "1, 2 or 4".
std::string either(const std::vector<int64_t>& values) {
  std::string text;
  for (size_t at = 0; at < values.size(); ++at) {
    if (at > 0) text += at + 1 == values.size() ? " or " : ", ";
    text += std::to_string(values[at]);
  }
  return text;
}

std::vector<int64_t> dividing_both(int64_t a, int64_t b) {
  std::vector<int64_t> list = divisors(a);
  std::erase_if(list, [b](int64_t d) { return b % d != 0; });
  return list;
}

// A size that must be positive and divide `whole`.
void check_divides(std::string_view key, int64_t size, std::string_view whole_name, int64_t whole,
                   const std::vector<int64_t>& choices) {
  if (size >= 1 && whole % size == 0) return;
  const std::string topic = fmt::format("config/{}", key);
  const std::string hint = fmt::format("Use {}.", either(choices));
  if (size < 1) {
    throw make_error(Code::kConfig, topic, "{} is {}, but must be at least 1", key, size).hint(hint);
  }
  throw make_error(Code::kConfig, topic, "{} {} does not divide {} {}", key, size, whole_name, whole).hint(hint);
}

void check_product(std::string_view key, const std::optional<int64_t>& size, std::string_view other_key, int64_t other,
                   int world) {
  if (!size || *size == world / other) return;
  throw make_error(Code::kConfig, fmt::format("config/{}", key), "{} {} times {} {} must be the number of ranks, {}",
                   key, *size, other_key, other, world)
      .hint(fmt::format("Use {} {}, or leave it out.", key, world / other));
}

}  // namespace

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::kWorld:
      return "world";
    case Axis::kDp:
      return "dp";
    case Axis::kCp:
      return "cp";
    case Axis::kMpReplicate:
      return "mp_replicate";
    case Axis::kMpShard:
      return "mp_shard";
    case Axis::kEdp:
      return "edp";
    case Axis::kEfsdp:
      return "efsdp";
    case Axis::kEp:
      return "ep";
    case Axis::kExpertCp:
      return "expert_cp";
    case Axis::kExpertReplicas:
      return "expert_replicas";
  }
  return "unknown";
}

int Topology::size(Axis axis) const {
  switch (axis) {
    case Axis::kWorld:
      return world;
    case Axis::kDp:
      return dp;
    case Axis::kCp:
    case Axis::kExpertCp:
      return cp;
    case Axis::kMpReplicate:
      return mp_replicate;
    case Axis::kMpShard:
      return mp_shard;
    case Axis::kEdp:
      return edp;
    case Axis::kEfsdp:
      return efsdp;
    case Axis::kEp:
      return ep;
    case Axis::kExpertReplicas:
      return edp * cp;
  }
  return 1;
}

Coordinates Topology::coordinates(int rank) const {
  EXPERTMESH_CHECK(rank >= 0 && rank < world, "rank {} of {}", rank, world);
  Coordinates at;
  at.cp = rank % cp;
  at.dp = rank / cp;
  at.mp_shard = rank % mp_shard;
  at.mp_replicate = rank / mp_shard;
  at.ep = at.dp % ep;
  at.efsdp = at.dp / ep % efsdp;
  at.edp = at.dp / (ep * efsdp);
  return at;
}

int Topology::rank_at(int edp_index, int efsdp_index, int ep_index, int cp_index) const {
  return ((edp_index * efsdp + efsdp_index) * ep + ep_index) * cp + cp_index;
}

std::vector<std::vector<int>> Topology::groups(Axis axis) const {
  // Ranks that agree in everything but the axis form a group; ranks come in order, so groups and members are sorted.
  std::map<Coordinates, std::vector<int>, bool (*)(const Coordinates&, const Coordinates&)> by_rest(
      [](const Coordinates& a, const Coordinates& b) {
        const auto key = [](const Coordinates& c) {
          return std::array{c.dp, c.cp, c.mp_replicate, c.mp_shard, c.edp, c.efsdp, c.ep};
        };
        return key(a) < key(b);
      });
  for (int rank = 0; rank < world; ++rank) {
    const Coordinates at = coordinates(rank);
    Coordinates rest;  // what members of one group share
    switch (axis) {
      case Axis::kWorld:
        break;
      case Axis::kDp:
        rest.cp = at.cp;
        break;
      case Axis::kCp:
      case Axis::kExpertCp:
        rest.dp = at.dp;
        break;
      case Axis::kMpReplicate:
        rest.mp_shard = at.mp_shard;
        break;
      case Axis::kMpShard:
        rest.mp_replicate = at.mp_replicate;
        break;
      case Axis::kEdp:
        rest.efsdp = at.efsdp, rest.ep = at.ep, rest.cp = at.cp;
        break;
      case Axis::kEfsdp:
        rest.edp = at.edp, rest.ep = at.ep, rest.cp = at.cp;
        break;
      case Axis::kEp:
        rest.edp = at.edp, rest.efsdp = at.efsdp, rest.cp = at.cp;
        break;
      case Axis::kExpertReplicas:
        rest.efsdp = at.efsdp, rest.ep = at.ep;
        break;
    }
    by_rest[rest].push_back(rank);
  }
  std::vector<std::vector<int>> list;
  list.reserve(by_rest.size());
  for (auto& [rest, members] : by_rest) list.push_back(std::move(members));
  std::sort(list.begin(), list.end());
  return list;
}

std::string Topology::describe_rank(int rank) const {
  const Coordinates at = coordinates(rank);
  std::string text;
  const auto add = [&text](std::string_view name, int index, int axis_size) {
    if (axis_size == 1) return;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", name, index);
  };
  add("dp", at.dp, dp);
  add("cp", at.cp, cp);
  add("edp", at.edp, edp);
  add("efsdp", at.efsdp, efsdp);
  add("ep", at.ep, ep);
  return text;
}

std::string Topology::table() const {
  const auto row = [](std::string_view mesh, std::string_view axes, const std::string& sizes, std::string_view use) {
    return fmt::format("{:<8}{:<30}{:<18}{}\n", mesh, axes, sizes, use);
  };
  return row("mesh", "axes", "sizes", "used for") +
         row("data", "(dp, cp)", fmt::format("{} x {}", dp, cp), "samples, sequence chunks") +
         row("FSDP", "(mp_replicate, mp_shard)", fmt::format("{} x {}", mp_replicate, mp_shard),
             "all parameters but experts") +
         row("expert", "(edp, efsdp, ep, expert_cp)", fmt::format("{} x {} x {} x {}", edp, efsdp, ep, cp),
             "expert parameters");
}

Topology make_topology(int world, const TopologyRequest& request) {
  EXPERTMESH_CHECK(world >= 1, "{} ranks", world);
  Topology topology;
  topology.world = world;

  std::vector<int64_t> cp_choices = divisors(world);
  if (request.num_attention_heads) cp_choices = dividing_both(world, *request.num_attention_heads);
  check_divides("cp_size", request.cp_size, "the number of ranks,", world, cp_choices);
  topology.cp = static_cast<int>(request.cp_size);
  topology.dp = world / topology.cp;
  check_product("dp_size", request.dp_size, "cp_size", topology.cp, world);
  if (request.num_attention_heads) check_head_count(topology.cp, *request.num_attention_heads, world);

  check_divides("mp_replicate_size", request.mp_replicate_size, "the number of ranks,", world, divisors(world));
  topology.mp_replicate = static_cast<int>(request.mp_replicate_size);
  topology.mp_shard = world / topology.mp_replicate;
  check_product("mp_shard_size", request.mp_shard_size, "mp_replicate_size", topology.mp_replicate, world);

  std::vector<int64_t> ep_choices = divisors(topology.dp);
  if (request.num_experts) ep_choices = dividing_both(topology.dp, *request.num_experts);
  check_divides("ep_size", request.ep_size, "dp_size", topology.dp, ep_choices);
  topology.ep = static_cast<int>(request.ep_size);
  if (request.num_experts) check_expert_count(topology.ep, *request.num_experts, topology.dp);

  const int rest = topology.dp / topology.ep;
  const int64_t efsdp = request.efsdp_size.value_or(rest);
  check_divides("efsdp_size", efsdp, "dp_size / ep_size =", rest, divisors(rest));
  topology.efsdp = static_cast<int>(efsdp);
  topology.edp = rest / topology.efsdp;
  return topology;
}

void check_expert_count(int64_t ep_size, int64_t num_experts, int dp) {
  if (ep_size >= 1 && num_experts % ep_size == 0) return;
  throw make_error(Code::kConfig, "config/ep_size", "ep_size {} does not divide num_experts {} of the model", ep_size,
                   num_experts)
      .hint(fmt::format("Use {}.", either(dividing_both(dp, num_experts))));
}

void check_head_count(int64_t cp_size, int64_t num_attention_heads, int world) {
  if (cp_size >= 1 && num_attention_heads % cp_size == 0) return;
  throw make_error(Code::kConfig, "config/cp_size", "cp_size {} does not divide num_attention_heads {} of the model",
                   cp_size, num_attention_heads)
      .hint(fmt::format("Use {}.", either(dividing_both(world, num_attention_heads))));
}

}  // namespace expertmesh::comm
