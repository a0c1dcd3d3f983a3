// SPDX-License-Identifier: Apache-2.0
#include "comm/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace expertmesh::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

base::Json read_vectors(const std::string& name) {
  const auto fs = base::make_posix_file_system(base::Code::kInternal);
  return base::parse_json(fs->read_all(base::join_path(EXPERTMESH_SOURCE_DIR, "tests/comm/" + name)));
}

Groups to_groups(const base::Json& json) {
  Groups groups;
  for (const base::Json& list : *json.try_array()) {
    groups.emplace_back();
    for (const base::Json& rank : *list.try_array()) groups.back().push_back(static_cast<int>(*rank.try_int64()));
  }
  return groups;
}

TEST(Topology, GroupsOfTheVectors) {
  const base::Json vectors = read_vectors("meshes.json");
  int num_cases = 0;
  for (const auto& [key, wanted] : *vectors.find("ok")->try_object()) {
    const base::Json input = base::parse_json(key);
    const base::Json::Array& sizes = *input.try_array();
    TopologyRequest request{.cp_size = *sizes[1].try_int64(), .ep_size = *sizes[2].try_int64()};
    if (!sizes[3].is_null()) request.efsdp_size = sizes[3].try_int64();
    const Topology topology = make_topology(static_cast<int>(*sizes[0].try_int64()), request);
    const base::Json::Array& shape = *wanted.find("shape")->try_array();
    EXPECT_EQ(topology.edp, *shape[0].try_int64());
    EXPECT_EQ(topology.efsdp, *shape[1].try_int64());
    EXPECT_EQ(topology.ep, *shape[2].try_int64());
    EXPECT_EQ(topology.cp, *shape[3].try_int64());
    for (const Axis axis : {Axis::kEdp, Axis::kEfsdp, Axis::kEp, Axis::kExpertCp, Axis::kDp, Axis::kCp}) {
      EXPECT_EQ(topology.groups(axis), to_groups(*wanted.find(axis_name(axis)))) << key << ' ' << axis_name(axis);
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 6);
}

// Every axis of every topology divides all ranks into groups of the axis' size, and coordinates name the rank.
TEST(Topology, EveryShapeIsAPartition) {
  for (int world = 1; world <= 16; ++world) {
    for (int64_t cp = 1; cp <= world; ++cp) {
      for (int64_t ep = 1; ep <= world; ++ep) {
        for (int64_t efsdp = 1; efsdp <= world; ++efsdp) {
          if (world % cp != 0 || world / cp % ep != 0 || world / cp / ep % efsdp != 0) continue;
          const Topology t = make_topology(world, {.cp_size = cp, .ep_size = ep, .efsdp_size = efsdp});
          for (int rank = 0; rank < world; ++rank) {
            const Coordinates at = t.coordinates(rank);
            EXPECT_EQ(t.rank_at(at.edp, at.efsdp, at.ep, at.cp), rank);
            EXPECT_EQ(at.dp * t.cp + at.cp, rank);
            EXPECT_EQ(at.mp_replicate * t.mp_shard + at.mp_shard, rank);
          }
          for (int axis = 0; axis <= static_cast<int>(Axis::kExpertReplicas); ++axis) {
            std::vector<int> seen(static_cast<size_t>(world), 0);
            for (const auto& group : t.groups(static_cast<Axis>(axis))) {
              EXPECT_EQ(static_cast<int>(group.size()), t.size(static_cast<Axis>(axis)));
              for (const int member : group) ++seen[static_cast<size_t>(member)];
            }
            EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(world), 1));
          }
        }
      }
    }
  }
}

TEST(Topology, ReplicasOfAnExpertShard) {
  const Topology t = make_topology(16, {.cp_size = 2, .ep_size = 2, .efsdp_size = 2});
  EXPECT_EQ(t.edp, 2);
  // Order of the members: edp outside, expert_cp inside.
  EXPECT_EQ(t.groups(Axis::kExpertReplicas), (Groups{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
}

TEST(Topology, HybridSharding) {
  const Topology t = make_topology(8, {.mp_replicate_size = 2});
  EXPECT_EQ(t.mp_shard, 4);
  EXPECT_EQ(t.groups(Axis::kMpShard), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(t.groups(Axis::kMpReplicate), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(make_topology(8, {.mp_replicate_size = 2, .mp_shard_size = 4}), t);
}

TEST(Topology, DerivedSizes) {
  const Topology minimal = make_topology(4, {.ep_size = 2, .num_experts = 4});
  EXPECT_EQ(minimal, (Topology{.world = 4, .dp = 4, .mp_shard = 4, .efsdp = 2, .ep = 2}));
  const Topology replicas = make_topology(8, {.ep_size = 2, .efsdp_size = 2, .num_experts = 4});
  EXPECT_EQ(replicas.edp, 2);
  const Topology all_ep = make_topology(4, {.ep_size = 4, .num_experts = 4});
  EXPECT_EQ(all_ep.efsdp, 1);
  EXPECT_EQ(all_ep.edp, 1);
  EXPECT_EQ(make_topology(4, {.cp_size = 2, .dp_size = 2}).dp, 2);
  EXPECT_EQ(make_topology(1, {}), Topology{});
}

struct Refusal {
  int world;
  TopologyRequest request;
  std::string topic;
  std::vector<std::string> contains;
};

TEST(Topology, RefusalsNameTheKeyTheValuesAndWhatFits) {
  const std::vector<Refusal> refusals = {
      {8, {.ep_size = 3, .num_experts = 4}, "config/ep_size", {"ep_size 3", "8", "Use 1, 2 or 4."}},
      {4, {.ep_size = 8, .num_experts = 4}, "config/ep_size", {"ep_size 8", "4", "1, 2"}},
      {8, {.ep_size = 8, .num_experts = 4}, "config/ep_size", {"ep_size 8", "num_experts 4", "1, 2"}},
      {8, {.ep_size = 8, .num_experts = 20}, "config/ep_size", {"ep_size 8", "num_experts 20", "1, 2 or 4"}},
      {4, {.ep_size = 0}, "config/ep_size", {"ep_size is 0", "1, 2 or 4"}},
      {4, {.ep_size = -2}, "config/ep_size", {"ep_size is -2"}},
      {8, {.ep_size = 2, .efsdp_size = 3}, "config/efsdp_size", {"efsdp_size 3", "4", "1, 2"}},
      {8, {.ep_size = 2, .efsdp_size = 0}, "config/efsdp_size", {"efsdp_size is 0"}},
      {4, {.cp_size = 3}, "config/cp_size", {"cp_size 3", "4", "1, 2 or 4"}},
      {4, {.cp_size = -1}, "config/cp_size", {"cp_size is -1"}},
      {4, {.cp_size = 4, .num_attention_heads = 2}, "config/cp_size", {"cp_size 4", "num_attention_heads 2", "1 or 2"}},
      {8, {.cp_size = 2, .dp_size = 3}, "config/dp_size", {"dp_size 3", "cp_size 2", "8", "dp_size 4"}},
      {8, {.mp_replicate_size = 3}, "config/mp_replicate_size", {"mp_replicate_size 3", "8", "1, 2, 4 or 8"}},
      {8,
       {.mp_replicate_size = 2, .mp_shard_size = 2},
       "config/mp_shard_size",
       {"mp_shard_size 2", "8", "mp_shard_size 4"}},
      {1, {.ep_size = INT64_MAX}, "config/ep_size", {"ep_size 9223372036854775807", "Use 1."}},
      {2, {.cp_size = 2, .dp_size = INT64_MAX}, "config/dp_size", {"dp_size 1"}},
  };
  for (const Refusal& refusal : refusals) {
    try {
      make_topology(refusal.world, refusal.request);
      FAIL() << refusal.topic << " of a world of " << refusal.world << " was accepted";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kConfig);
      EXPECT_EQ(error.topic(), refusal.topic);
      for (const std::string& part : refusal.contains) EXPECT_THAT(error.text(), HasSubstr(part));
    }
  }
}

TEST(Topology, ChecksOfAModelSeenLater) {
  check_expert_count(4, 8, 8);
  check_head_count(2, 8, 8);
  EXPECT_THROW(check_expert_count(4, 6, 8), base::Error);
  EXPECT_THROW(check_head_count(8, 12, 8), base::Error);
}

TEST(Topology, TableAndPlace) {
  const Topology t = make_topology(16, {.cp_size = 2, .ep_size = 2, .efsdp_size = 2});
  EXPECT_THAT(t.table(), AllOf(HasSubstr("(edp, efsdp, ep, expert_cp)   2 x 2 x 2 x 2"), HasSubstr("1 x 16"),
                               HasSubstr("(dp, cp)                      8 x 2")));
  EXPECT_EQ(t.describe_rank(13), "dp 6, cp 1, edp 1, efsdp 1, ep 0");
  EXPECT_EQ(make_topology(1, {}).describe_rank(0), "");
}

}  // namespace
}  // namespace expertmesh::comm
