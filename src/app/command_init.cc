// SPDX-License-Identifier: Apache-2.0
// `expertmesh init --config FILE|--preset NAME [--tokenizer DIR] [--seed N] [--dtype bf16|fp32] --out DIR`
#include <CLI/CLI.hpp>
#include <cstdio>

#include "app/command.h"
#include "app/console.h"
#include "app/preset.h"
#include "app/usage.h"
#include "base/error.h"
#include "train/job.h"
#include "train/random_model.h"
#include "train/start_table.h"

namespace expertmesh::app {
namespace {

base::DType dtype_of(const std::string& name) {
  if (name == "bf16") return base::DType::kBF16;
  if (name == "fp32") return base::DType::kF32;
  throw base::make_error(base::Code::kUsage, "init/dtype", "--dtype {} is not known", name).hint("Use bf16 or fp32.");
}

}  // namespace

void run_init(const Arguments& arguments) {
  std::string config_file, preset, dtype = "bf16";
  int64_t seed = 42;
  train::RandomModelOptions options;
  auto parser = make_parser("init");
  parser->add_option("--config", config_file, "a config.json to make the model of");
  parser->add_option("--preset", preset, "a ready shape instead (`expertmesh list presets`)");
  parser->add_option("--tokenizer", options.tokenizer_dir, "directory whose tokenizer files are copied");
  parser->add_option("--seed", seed, "of the weights (default 42)");
  parser->add_option("--dtype", dtype, "bf16 or fp32 (default bf16)");
  parser->add_option("--out", options.out, "directory to make")->required();
  parse(*parser, arguments);
  if (config_file.empty() == preset.empty()) {
    throw base::Error(
        base::Code::kUsage, "init/arguments",
        config_file.empty() ? "neither --config nor --preset was given" : "both --config and --preset were given")
        .hint("Give one of them.");
  }
  if (seed < 0) {
    throw base::make_error(base::Code::kUsage, "init/seed", "--seed {} is below 0", seed).hint("Use 0 or more.");
  }
  options.seed = static_cast<uint64_t>(seed);
  options.dtype = dtype_of(dtype);
  options.config = preset.empty() ? train::read_config_json(config_file) : find_preset(preset).preset.config();
  options.where = preset.empty() ? config_file : "preset " + preset;

  StatusLine line;
  ProgressLine progress(line, "writing");
  uint64_t bytes = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    bytes = total;
    progress.update(done, total);
  };
  train::write_random_model(options);
  line.clear();
  fmt::print("{}: {} of weights, seed {}\n", options.out, train::human_bytes(static_cast<double>(bytes)), options.seed);
}

}  // namespace expertmesh::app
