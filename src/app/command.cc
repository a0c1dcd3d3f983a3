// SPDX-License-Identifier: Apache-2.0
#include "app/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "app/error_report.h"
#include "app/usage.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/freed_memory.h"
#include "base/version.h"
#include "config/suggest.h"

namespace expertmesh::app {
namespace {

constexpr std::array<Command, 8> kCommands{{
    {"sft", "train", "fine-tune a model on instructions or conversations",
     "expertmesh sft config.yaml dist_config.ep_size=2 --ranks 4", &run_sft},
    {"score", "", "log-probability of every token of given rows",
     "expertmesh score --model MODEL_DIR --input rows.jsonl --output scores.jsonl", &run_score},
    {"generate", "", "answer or continue a prompt, or rows of a file",
     "expertmesh generate --model MODEL_DIR --prompt \"What is a mesh?\" --max-new-tokens 200", &run_generate},
    {"chat", "", "talk to a model", "expertmesh chat --model MODEL_DIR --temperature 0.7", &run_chat},
    {"init", "", "make a model directory with random weights",
     "expertmesh init --preset qwen3-moe-quickstart --out MODEL_DIR", &run_init},
    {"list", "", "what there is: models, dispatchers, kernels, presets, converters", "expertmesh list presets",
     &run_list},
    {"bench", "", "time the dispatchers of a model's experts under kinds of routing",
     "expertmesh bench moe --workload hot-rank --ranks 2,4", &run_bench},
    {"version", "", "version, build, libtorch, processor, engines", "expertmesh version", &run_version},
}};

// Commands of the peer that people will try, and that are not here yet.
constexpr std::array<std::string_view, 4> kPlanned{"dpo", "rm", "export", "render"};

std::string overview() {
  std::string text =
      "expertmesh: fine-tunes mixture-of-experts language models\n\nUsage: expertmesh COMMAND "
      "[arguments]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    const std::string name =
        command.alias.empty() ? std::string(command.name) : fmt::format("{} ({})", command.name, command.alias);
    text += fmt::format("  {:<14}{}\n", name, command.summary);
  }
  return text + fmt::format("\nExample: {}\nHelp:    expertmesh COMMAND --help\n", kCommands[0].example);
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == name || (!command.alias.empty() && command.alias == name)) return command;
    names.emplace_back(command.name);
  }
  if (std::find(kPlanned.begin(), kPlanned.end(), name) != kPlanned.end()) {
    throw base::make_error(base::Code::kUsage, "app/command", "the command {} is not built yet", name)
        .hint(fmt::format("This version has {}.", config::join_names(names)));
  }
  auto error = base::make_error(base::Code::kUsage, "app/command", "there is no command \"{}\"", name);
  const auto near = config::try_nearest(name, names);
  throw error.hint(near ? fmt::format("Did you mean `expertmesh {}`? `expertmesh --help` lists all.", *near)
                        : "`expertmesh --help` lists the commands.");
}

int run_unprotected(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    std::fputs(overview().c_str(), stdout);
    return 0;
  }
  if (arguments[0] == "--version") {
    run_version({});
    return 0;
  }
  base::configure_faults_from_environment();
  try {
    find_command(arguments[0]).run(Arguments(arguments.begin() + 1, arguments.end()));
  } catch (const HelpShown&) {
    return 0;
  }
  return 0;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

void prepare_process() {
  // A closed standard stream's number would go to the next file opened, and what is printed into that file.
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
  (void)std::signal(SIGXFSZ, SIG_IGN);  // a file past the system's limit is an error of the write
  base::keep_freed_memory();
}

int run(const Arguments& arguments) {
  try {
    return run_unprotected(arguments);
  } catch (const base::Error& error) {
    return report_error(error);
  } catch (const std::bad_alloc&) {
    return report_error(base::Error(base::Code::kResources, "app/memory", "out of memory"));
  } catch (const std::exception& error) {
    return report_error(base::Error(base::Code::kInternal, "internal", error.what()));
  }
}

}  // namespace expertmesh::app
