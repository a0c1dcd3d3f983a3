// SPDX-License-Identifier: Apache-2.0
// A rank's place as a launcher's environment variables give it: torchrun, Slurm or Open MPI. No torch, no network.
// Errors: kCommSetup for variables that are missing, malformed, or disagree between launchers.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace expertmesh::comm {

struct Launch {
  std::string launcher;  // "torchrun", "Slurm", "Open MPI"
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // -1: not said
  int local_size = -1;
  std::string address;  // of rank 0; empty where size is 1
  int port = 0;
  bool has_agent_store = false;  // the launcher's agent serves the store
  std::string run_key;           // differs between restarts of one job
};

// The value of a variable, or nullptr.
using Environment = std::function<const char*(const char* name)>;

// Nothing where no launcher's variables are there.
std::optional<Launch> find_launch(const Environment& environment);

}  // namespace expertmesh::comm
