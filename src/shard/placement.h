// SPDX-License-Identifier: Apache-2.0
// Decides where every parameter lives: experts first (EP, then EFSDP), the rest after that (outer FSDP2). Placement is
// arithmetic; nothing is allocated and nothing is sent.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/group.h"
#include "shard/module.h"

namespace expertmesh::shard {

using ParameterSet = std::unordered_set<const Parameter*>;

struct ExpertGroups {
  std::shared_ptr<comm::Group> ep;
  std::shared_ptr<comm::Group> efsdp;
  std::shared_ptr<comm::Group> replicas;  // (edp, expert_cp): ranks that keep the same expert shard
};

// Partitions the parameters of the modules that match `pattern` by expert over ep, then shards dim 1 (dim 0 of 1-D
// ones) over efsdp. Returns them: the outer sharding must ignore them. Throws kConfig where ep does not divide the
// experts.
ParameterSet shard_experts(Module& model, const std::string& pattern, const ExpertGroups& groups);

struct OuterGroups {
  std::shared_ptr<comm::Group> shard;      // mp_shard
  std::shared_ptr<comm::Group> replicate;  // mp_replicate
  std::shared_ptr<comm::Group> world;      // gradients of ignored modules are summed over all ranks
};

// Shards dim 0 of every other parameter over `shard`, replicated over `replicate`. Modules that match one of
// `ignored_modules` stay whole on each rank. Programmer error where expert parameters of an expert mesh were not placed
// before (`experts` empty although has_expert_mesh). Throws kConfig for a pattern that matches no module.
void shard_outer(Module& model, const OuterGroups& groups, const ParameterSet& experts, bool has_expert_mesh,
                 const std::vector<std::string>& ignored_modules);

// No sharding at all (dist_config: null): every parameter whole on each rank, gradients summed over the world.
void replicate_all(Module& model, const std::shared_ptr<comm::Group>& world);

}  // namespace expertmesh::shard
