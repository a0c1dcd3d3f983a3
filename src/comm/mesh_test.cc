// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace expertmesh::comm {
namespace {

using ::testing::HasSubstr;

TEST(Meshes, GroupsOfEveryAxis) {
  run_threads(16, {}, [](World& world) {
    const Topology topology = make_topology(16, {.cp_size = 2, .ep_size = 2, .efsdp_size = 2, .mp_replicate_size = 2});
    const auto meshes = Meshes::build(world, topology);
    EXPECT_EQ(meshes->topology(), topology);
    EXPECT_EQ(meshes->coordinates(), topology.coordinates(world.rank()));
    EXPECT_EQ(meshes->place(), topology.describe_rank(world.rank()));
    for (int index = 0; index <= static_cast<int>(Axis::kExpertReplicas); ++index) {
      const Axis axis = static_cast<Axis>(index);
      Group& group = meshes->along(axis);
      EXPECT_EQ(group.name(), axis_name(axis));
      int64_t wanted = 0;
      for (const int member : group.members()) wanted += member;
      EXPECT_EQ(group.all_reduce_int(world.rank(), ReduceOp::kSum, "sum"), wanted);
    }
    const Coordinates& at = meshes->coordinates();
    EXPECT_EQ(meshes->dp().rank(), at.dp);
    EXPECT_EQ(meshes->cp().rank(), at.cp);
    EXPECT_EQ(meshes->mp_shard().rank(), at.mp_shard);
    EXPECT_EQ(meshes->mp_replicate().rank(), at.mp_replicate);
    EXPECT_EQ(meshes->ep().rank(), at.ep);
    EXPECT_EQ(meshes->efsdp().rank(), at.efsdp);
    EXPECT_EQ(meshes->edp().rank(), at.edp);
    EXPECT_EQ(meshes->expert_cp().rank(), at.cp);
    EXPECT_EQ(meshes->expert_replicas().rank(), at.edp * topology.cp + at.cp);
    EXPECT_EQ(meshes->world().rank(), world.rank());
    EXPECT_EQ(meshes->share(Axis::kEp).get(), &meshes->ep());
  });
}

TEST(Meshes, OneRank) {
  const auto world = make_single_world();
  const auto meshes = Meshes::build(*world, make_topology(1, {}));
  EXPECT_EQ(meshes->ep().size(), 1);
  EXPECT_EQ(meshes->place(), "");
}

TEST(Meshes, SecondBuild) {
  run_threads(4, {}, [](World& world) {
    const auto first = Meshes::build(world, make_topology(4, {.ep_size = 2}));
    EXPECT_EQ(Meshes::build(world, make_topology(4, {.ep_size = 2})), first);
    try {
      Meshes::build(world, make_topology(4, {.ep_size = 4}));
      ADD_FAILURE() << "another topology was accepted";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kConfig);
      EXPECT_THAT(error.message(), HasSubstr("ep 2) and cannot be divided again"));
    }
  });
}

TEST(Meshes, RanksThatDisagree) {
  try {
    run_threads(4, {},
                [](World& world) { Meshes::build(world, make_topology(4, {.ep_size = world.rank() == 2 ? 4 : 2})); });
    FAIL() << "accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig);
    EXPECT_THAT(error.message(), HasSubstr("rank 2 has (world 4"));
  }
}

}  // namespace
}  // namespace expertmesh::comm
