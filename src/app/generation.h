// SPDX-License-Identifier: Apache-2.0
// What the commands that generate text share: their flags, and what a process prepares before its ranks start.
// Errors: kUsage for flags.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/launch.h"
#include "app/usage.h"
#include "config/load.h"
#include "data/input_rows.h"
#include "generate/generator.h"
#include "generate/settings.h"
#include "train/job.h"

namespace expertmesh::app {

struct GenerationFlags {
  LaunchOptions launch;
  std::string model;
  generate::SamplingWishes sampling;
  std::optional<int64_t> seed, max_new_tokens;
  std::optional<std::string> bf16, thinking;  // "true" or "false"
  std::vector<std::string> positionals;
};

// The flags that both commands have; --model too.
void add_generation_flags(CLI::App& parser, GenerationFlags& flags);
// Values that no model could work with.
void check_generation_flags(const GenerationFlags& flags);
// "--batch", a flag's value, and the least it may be.
void check_at_least(std::string_view flag, std::optional<int64_t> value, int64_t least);

// Sets the timeout of flags.launch, too.
config::Loaded load_generation_config(GenerationFlags& flags, const Positionals& positionals);

// A process's read-only part of generating, shared by its ranks. Made by prepare_generation.
struct GenerationJob {
  train::Job job;
  std::unique_ptr<base::FileSystem> fs;
  std::unique_ptr<data::InputReader> reader;   // opens answers
  const data::Tokenizer* tokenizer = nullptr;  // nullptr: the model has none
  generate::ModelSettings settings;
  generate::GeneratorOptions options;

  // A row with what ends its answer: the model's end tokens, and of a conversation the end of a turn.
  generate::Prompt prompt_of(data::InputRow row) const;
};
// Where the configuration says nothing else, bf16 is as the weights are and parameters stay gathered between tokens.
GenerationJob prepare_generation(config::Loaded loaded, const GenerationFlags& flags, int world_size);

// How tokens are chosen, how many, what ends an answer, in one line.
std::string describe_settings(const GenerationJob& generation);
// That line on stderr, with a warning of what the model asks for and does not get.
void log_settings(const GenerationJob& generation);

}  // namespace expertmesh::app
