// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.h"

#include "base/check.h"

namespace expertmesh::comm {
namespace {

std::string shape_text(const Topology& t) {
  return fmt::format("world {}, dp {}, cp {}, mp_replicate {}, mp_shard {}, edp {}, efsdp {}, ep {}", t.world, t.dp,
                     t.cp, t.mp_replicate, t.mp_shard, t.edp, t.efsdp, t.ep);
}

void check_consistent(const World& world, const Topology& t) {
  EXPERTMESH_CHECK(t.world == world.size(), "topology of {} ranks in a world of {}", t.world, world.size());
  EXPERTMESH_CHECK(t.dp * t.cp == t.world && t.mp_replicate * t.mp_shard == t.world && t.edp * t.efsdp * t.ep == t.dp,
                   "topology does not add up: {}", shape_text(t));
}

void check_agreed(World& world, const std::string& shape) {
  const std::vector<std::string> all = world.all().all_gather_text(shape, "meshes: topology");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw base::make_error(base::Code::kConfig, "config/topology",
                           "ranks disagree on the topology: rank 0 has ({}), rank {} has ({})", all[0], rank, all[rank])
        .hint("Start all ranks with the same configuration.");
  }
}

// A group of the world, checked against the size that the topology says.
std::shared_ptr<Group> build_axis(World& world, const Topology& topology, Axis axis) {
  auto group = world.make_group(std::string(axis_name(axis)), topology.groups(axis));
  EXPERTMESH_CHECK(group->size() == topology.size(axis), "axis {} has {} ranks, the topology says {}", axis_name(axis),
                   group->size(), topology.size(axis));
  return group;
}

}  // namespace

std::shared_ptr<const Meshes> Meshes::build(World& world, const Topology& topology) {
  const std::string shape = shape_text(topology);
  if (!world.divided_as_.empty() && world.divided_as_ != shape) {
    throw base::make_error(base::Code::kConfig, "config/topology",
                           "the ranks are already divided as ({}) and cannot be divided again as ({})",
                           world.divided_as_, shape)
        .hint("Start a new run for another topology.");
  }
  if (auto built = world.meshes_.lock()) return built;
  check_consistent(world, topology);
  check_agreed(world, shape);

  const std::shared_ptr<Meshes> meshes(new Meshes());
  meshes->topology_ = topology;
  meshes->rank_ = world.rank();
  meshes->coordinates_ = topology.coordinates(world.rank());
  meshes->place_ = topology.describe_rank(world.rank());
  meshes->world_ = build_axis(world, topology, Axis::kWorld);
  meshes->dp_ = build_axis(world, topology, Axis::kDp);
  meshes->cp_ = build_axis(world, topology, Axis::kCp);
  meshes->mp_replicate_ = build_axis(world, topology, Axis::kMpReplicate);
  meshes->mp_shard_ = build_axis(world, topology, Axis::kMpShard);
  meshes->edp_ = build_axis(world, topology, Axis::kEdp);
  meshes->efsdp_ = build_axis(world, topology, Axis::kEfsdp);
  meshes->ep_ = build_axis(world, topology, Axis::kEp);
  meshes->expert_cp_ = build_axis(world, topology, Axis::kExpertCp);
  meshes->expert_replicas_ = build_axis(world, topology, Axis::kExpertReplicas);
  world.divided_as_ = shape;
  world.meshes_ = meshes;
  return meshes;
}

std::shared_ptr<Group> Meshes::share(Axis axis) const {
  switch (axis) {
    case Axis::kWorld:
      return world_;
    case Axis::kDp:
      return dp_;
    case Axis::kCp:
      return cp_;
    case Axis::kMpReplicate:
      return mp_replicate_;
    case Axis::kMpShard:
      return mp_shard_;
    case Axis::kEdp:
      return edp_;
    case Axis::kEfsdp:
      return efsdp_;
    case Axis::kEp:
      return ep_;
    case Axis::kExpertCp:
      return expert_cp_;
    case Axis::kExpertReplicas:
      return expert_replicas_;
  }
  return world_;
}

Group& Meshes::along(Axis axis) const { return *share(axis); }

}  // namespace expertmesh::comm
