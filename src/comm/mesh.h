// SPDX-License-Identifier: Apache-2.0
// The groups of one rank along every axis of the data, FSDP and expert meshes.
// Collective over: world (build). A world is divided once: another topology afterwards is an error.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"
#include "comm/topology.h"
#include "comm/world.h"

namespace expertmesh::comm {

class Meshes {
 public:
  // Makes all groups and checks each against the size the topology says. The same topology again gives the same object.
  // Collective over world. Errors: kConfig where the ranks disagree, or another topology was built before.
  static std::shared_ptr<const Meshes> build(World& world, const Topology& topology);

  const Topology& topology() const { return topology_; }
  int rank() const { return rank_; }
  const Coordinates& coordinates() const { return coordinates_; }
  // "dp 1, ep 0", for Error::on_rank and log lines.
  const std::string& place() const { return place_; }

  Group& world() const { return *world_; }
  // Data mesh (dp, cp).
  Group& dp() const { return *dp_; }
  Group& cp() const { return *cp_; }
  // FSDP mesh (mp_replicate, mp_shard): every parameter that is not an expert's.
  Group& mp_replicate() const { return *mp_replicate_; }
  Group& mp_shard() const { return *mp_shard_; }
  // Expert mesh (edp, efsdp, ep, expert_cp).
  Group& edp() const { return *edp_; }
  Group& efsdp() const { return *efsdp_; }
  Group& ep() const { return *ep_; }
  Group& expert_cp() const { return *expert_cp_; }
  // (edp, expert_cp) in one: the ranks that hold the same expert shard.
  Group& expert_replicas() const { return *expert_replicas_; }

  Group& along(Axis axis) const;
  std::shared_ptr<Group> share(Axis axis) const;

 private:
  Meshes() = default;

  Topology topology_;
  Coordinates coordinates_;
  int rank_ = 0;
  std::string place_;
  std::shared_ptr<Group> world_, dp_, cp_, mp_replicate_, mp_shard_, edp_, efsdp_, ep_, expert_cp_, expert_replicas_;
};

}  // namespace expertmesh::comm
