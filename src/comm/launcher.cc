// SPDX-License-Identifier: Apache-2.0
#include "comm/launcher.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace expertmesh::comm {
namespace {

using base::Code;
using base::make_error;

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};

constexpr int kMaxRanks = 1 << 20;

std::optional<std::string_view> look_up(const Environment& environment, const char* name) {
  const char* value = name == nullptr ? nullptr : environment(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string_view(value);
}

std::optional<int> try_number(const Environment& environment, const char* name, int least, int most) {
  const auto text = look_up(environment, name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, status] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (status != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw make_error(Code::kCommSetup, "comm/launcher", "{} is \"{}\", not a number from {} to {}", name, *text, least,
                     most)
        .hint("Start the ranks with torchrun, srun or mpirun, or unset the variable.");
  }
  return value;
}

std::optional<Launch> try_launcher(const Environment& environment, const Names& names) {
  const auto rank = try_number(environment, names.rank, 0, kMaxRanks);
  const auto size = try_number(environment, names.size, 1, kMaxRanks);
  if (!rank && !size) return std::nullopt;
  // Slurm's batch step and Open MPI's tools leave a lone variable behind; torchrun's names are always a pair.
  if (!rank || !size) {
    if (std::string_view(names.launcher) != "torchrun") return std::nullopt;
    throw make_error(Code::kCommSetup, "comm/launcher", "{} is set but {} is not", rank ? names.rank : names.size,
                     rank ? names.size : names.rank)
        .hint("Start the ranks with torchrun, srun or mpirun, or unset the variable.");
  }
  if (*rank >= *size) {
    throw make_error(Code::kCommSetup, "comm/launcher", "{} is {} but {} is {}", names.rank, *rank, names.size, *size)
        .hint("Ranks count from 0 to the number of ranks minus 1.");
  }
  Launch launch;
  launch.launcher = names.launcher;
  launch.rank = *rank;
  launch.size = *size;
  launch.local_rank = try_number(environment, names.local_rank, 0, kMaxRanks).value_or(-1);
  launch.local_size = try_number(environment, names.local_size, 1, kMaxRanks).value_or(-1);
  return launch;
}

// torchrun started once per node by another launcher: that one counts nodes.
bool counts_nodes(const Environment& environment, const Launch& outer) {
  if (!look_up(environment, "TORCHELASTIC_RUN_ID")) return false;
  return try_number(environment, "GROUP_WORLD_SIZE", 1, kMaxRanks) == outer.size;
}

void add_rendezvous(const Environment& environment, Launch& launch) {
  const auto address = look_up(environment, "MASTER_ADDR");
  const auto port = try_number(environment, "MASTER_PORT", 1, 65535);
  if (!address || !port) {
    throw make_error(Code::kCommSetup, "comm/launcher", "{} ranks were started by {}, but {} is not set", launch.size,
                     launch.launcher, address ? "MASTER_PORT" : "MASTER_ADDR")
        .hint(
            "Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port on it, the same for all ranks, or "
            "use torchrun, which sets both.");
  }
  launch.address = *address;
  launch.port = *port;
  launch.has_agent_store = look_up(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.run_key = look_up(environment, "TORCHELASTIC_RUN_ID").value_or("run");
  launch.run_key += '/';
  launch.run_key += look_up(environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
}

}  // namespace

std::optional<Launch> find_launch(const Environment& environment) {
  std::optional<Launch> found;
  for (const Names& names : kLaunchers) {
    auto launch = try_launcher(environment, names);
    if (!launch) continue;
    if (!found) {
      found = std::move(launch);
      continue;
    }
    if ((launch->rank == found->rank && launch->size == found->size) || counts_nodes(environment, *launch)) continue;
    throw make_error(Code::kCommSetup, "comm/launcher",
                     "launchers disagree: {} says rank {} of {}, {} says rank {} of {}", found->launcher, found->rank,
                     found->size, launch->launcher, launch->rank, launch->size)
        .hint(fmt::format("Start the ranks with one launcher only, or unset {} and {}.", names.rank, names.size));
  }
  if (!found) return std::nullopt;
  if (found->size > 1) add_rendezvous(environment, *found);
  return found;
}

}  // namespace expertmesh::comm
