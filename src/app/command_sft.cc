// SPDX-License-Identifier: Apache-2.0
// `expertmesh sft config.yaml [key=value ...] [--ranks N]`
#include <CLI/CLI.hpp>
#include <atomic>
#include <random>

#include "app/command.h"
#include "app/console.h"
#include "app/launch.h"
#include "app/profile_request.h"
#include "app/signals.h"
#include "app/usage.h"
#include "base/log.h"
#include "train/trainer.h"

namespace expertmesh::app {
namespace {

struct SftArguments {
  LaunchOptions launch;
  Positionals positionals;
};

SftArguments parse_arguments(const Arguments& arguments) {
  SftArguments result;
  std::vector<std::string> positionals;
  auto parser = make_parser("sft");
  parser->add_option("CONFIG", positionals,
                     "configuration file (YAML or JSON), then key=value overrides; docs/config.md lists the keys");
  parser->add_option("--ranks", result.launch.ranks,
                     "rank threads in this process; left out: an outside launcher's ranks, or one");
  parser->add_option("--threads-per-rank", result.launch.threads_per_rank,
                     "intra-op threads of each rank; left out: cores / ranks");
  parse(*parser, arguments);
  result.positionals = split_positionals(positionals);
  return result;
}

// 32 hexadecimal digits.
std::string random_name() {
  std::random_device device;
  std::string name;
  for (int i = 0; i < 4; ++i) name += fmt::format("{:08x}", device());
  return name;
}

config::Loaded load(const Positionals& positionals, config::Command command) {
  config::Loaded loaded = config::load_config(positionals.config_file, positionals.overrides, command);
  for (const std::string& warning : loaded.warnings) base::log_warn("{}", warning);
  if (profile_request()) loaded.config.train.profile = true;
  if (loaded.config.train.output_dir.empty()) loaded.config.train.output_dir = "outputs/" + random_name();
  return loaded;
}

}  // namespace

void run_sft(const Arguments& arguments) {
  SftArguments parsed = parse_arguments(arguments);
  const config::Loaded loaded = load(parsed.positionals, config::Command::kSft);
  parsed.launch.timeout = std::chrono::seconds(loaded.config.topology.dist_timeout);
  ignore_broken_pipes();

  StatusLine line;
  Console console(line);
  train::Job job;
  std::atomic<train::Stop> stop{train::Stop::kNone};
  launch(
      parsed.launch,
      [&](int world_size) {
        ProgressLine progress(line, "tokenising");
        job = train::prepare_job("sft", loaded, world_size,
                                 [&](uint64_t done, uint64_t total) { progress.update(done, total); });
        job.profile_dir = profile_request().value_or("");
        line.clear();
      },
      [&](comm::World& world) {
        take_stop_signals();
        stop = train::run_training(world, job, console);
      });
  if (stop == train::Stop::kSystem) {
    throw base::make_error(base::Code::kPreempted, "app/preempted",
                           "SIGTERM ended the run before its last step; the model of that step is saved")
        .hint("Start it again to train all steps: it begins with the first, resuming is not built yet.");
  }
}

}  // namespace expertmesh::app
