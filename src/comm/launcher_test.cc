// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace expertmesh::comm {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<Launch> find(const Variables& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    find(variables);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kCommSetup);
    EXPECT_FALSE(error.hint().empty());
    return error.text();
  }
  return "accepted";
}

TEST(Launcher, NoneIsNone) {
  EXPECT_FALSE(find({}));
  EXPECT_FALSE(find({{"MASTER_ADDR", "localhost"}, {"SLURM_NTASKS", "4"}}));
}

TEST(Launcher, Torchrun) {
  const auto launch = find({{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node1"},
                            {"MASTER_PORT", "29511"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RUN_ID", "job"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->address, "node1");
  EXPECT_EQ(launch->port, 29511);
  EXPECT_TRUE(launch->has_agent_store);
  EXPECT_EQ(launch->run_key, "job/2");
}

TEST(Launcher, SlurmAndOpenMpi) {
  const auto slurm = find({{"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "2"},
                           {"SLURM_LOCALID", "0"},
                           {"MASTER_ADDR", "a"},
                           {"MASTER_PORT", "1"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->launcher, "Slurm");
  EXPECT_EQ(slurm->local_size, -1);
  EXPECT_FALSE(slurm->has_agent_store);
  const auto mpi = find({{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "a"},
                         {"MASTER_PORT", "1"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->launcher, "Open MPI");
  EXPECT_EQ(mpi->local_rank, 1);
}

TEST(Launcher, OneRankNeedsNoAddress) {
  const auto launch = find({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->size, 1);
}

TEST(Launcher, AgreeingLaunchersAreFine) {
  EXPECT_TRUE(find({{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"SLURM_PROCID", "1"},
                    {"SLURM_NTASKS", "2"},
                    {"MASTER_ADDR", "a"},
                    {"MASTER_PORT", "1"}}));
  // torchrun on two nodes, each started by Slurm.
  const auto nested = find({{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"TORCHELASTIC_RUN_ID", "x"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_NTASKS", "2"},
                            {"MASTER_ADDR", "a"},
                            {"MASTER_PORT", "1"}});
  ASSERT_TRUE(nested);
  EXPECT_EQ(nested->rank, 5);
}

TEST(Launcher, Refusals) {
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
              HasSubstr("torchrun says rank 1 of 2, Slurm says rank 0 of 2"));
  EXPECT_THAT(
      refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
      HasSubstr("Open MPI says rank 1 of 4"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(refusal({{"RANK", "1"}}), HasSubstr("RANK is set but WORLD_SIZE is not"));
  EXPECT_THAT(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK is 2 but WORLD_SIZE is 2"));
  for (const char* bad : {"x", "-1", "1x", "99999999999999999999", " 1", "1.0"}) {
    EXPECT_THAT(refusal({{"RANK", bad}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK is \""));
  }
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT is \"70000\""));
}

}  // namespace
}  // namespace expertmesh::comm
