// SPDX-License-Identifier: Apache-2.0
// The World is what one rank knows of all ranks: its place, the engine's groups, and the abort that ends every wait.
// A rank gets its World as an argument; nothing here is global. Engines: single, threads (run_threads), c10d.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/group.h"
#include "comm/ledger.h"

namespace expertmesh::comm {

class Meshes;

class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks on this host
  virtual int local_size() const = 0;
  virtual std::string_view engine() const = 0;  // "single", "threads", "gloo"
  virtual bool shares_memory() const = 0;       // peers' pointers can be read: the threads engine

  // The group of all ranks; lives as long as the World.
  virtual Group& all() = 0;

  // Splits the world into groups and returns this rank's. Collective over all ranks: `groups` is the same partition on
  // every rank, each group a list of global ranks in the order of their group ranks. A group of one is the identity.
  virtual std::shared_ptr<Group> make_group(std::string name, const std::vector<std::vector<int>>& groups) = 0;

  // Ends every wait of every rank with kPeerLost. The first cause wins; idempotent.
  virtual void abort(const base::Error& cause) = 0;
  // Why the world was aborted, as far as this rank knows; with the rank that failed.
  virtual std::optional<base::Error> abort_cause() const = 0;

  // The flight recorder of this rank.
  virtual Ledger& ledger() = 0;

 private:
  // How Meshes::build divided this world; it may be divided once.
  friend class Meshes;
  std::string divided_as_;
  std::weak_ptr<const Meshes> meshes_;
};

// What happened when a job failed: for the report and the flight records.
struct FailureReport {
  base::Error cause;                      // with its rank
  std::vector<base::Error> consequences;  // what the other ranks saw, in order of arrival
  std::vector<const Ledger*> ledgers;     // by rank; of the ranks that this process has
  std::vector<int> ranks;                 // whose ledgers these are
};

struct WorldOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(18000);      // of one collective (dist_timeout)
  std::chrono::milliseconds setup_timeout = std::chrono::seconds(300);  // for all ranks to appear
  std::chrono::milliseconds stuck_after = std::chrono::seconds(3);      // from an abort to on_stuck
  // Called once when the job has failed, before the cause is thrown or on_stuck is called.
  std::function<void(const FailureReport&)> on_failure = {};
};

std::unique_ptr<World> make_single_world(const WorldOptions& options = {});

// Runs `body` on `size` rank threads, each with its own World, and joins them. A body that throws aborts the others;
// after all have left, the first primary cause is thrown, with its rank filled in. A thread that has not come back
// `stuck_after` from an abort cannot be killed: `on_stuck` is called (it must not return: report and _exit; left out,
// the cause is logged and the process leaves with its code).
void run_threads(int size, const WorldOptions& options, const std::function<void(World&)>& body,
                 const std::function<void(const base::Error&)>& on_stuck = {});

// Runs `body` on the one rank that this process is: single or joined. A body that throws aborts the others; what is
// thrown from here is the job's first cause where it is known, on every rank.
void run_rank(World& world, const WorldOptions& options, const std::function<void(World&)>& body);

// Joins the processes that a launcher started (torchrun, Slurm, Open MPI), found in the environment; nothing where no
// launcher's variables are there. Throws kCommSetup where they disagree or peers are missing.
std::unique_ptr<World> try_join_launcher(const WorldOptions& options);

}  // namespace expertmesh::comm
