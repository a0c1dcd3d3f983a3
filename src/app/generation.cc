// SPDX-License-Identifier: Apache-2.0
#include "app/generation.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace expertmesh::app {
namespace {

using base::Code;
using base::make_error;

constexpr std::string_view kEndOfTurn = "<|im_end|>";
constexpr int64_t kMostNewTokens = int64_t{1} << 30;

void refuse(std::string_view flag, const std::string& value, std::string_view fault) {
  if (fault.empty()) return;
  throw make_error(Code::kUsage, fmt::format("generate/{}", flag.substr(2)), "{} {} {}", flag, value, fault);
}

void check_choice(std::string_view flag, const std::optional<std::string>& value) {
  if (!value || *value == "true" || *value == "false") return;
  throw make_error(Code::kUsage, fmt::format("generate/{}", flag.substr(2)), "{} is \"{}\", not true or false", flag,
                   *value)
      .hint(fmt::format("Use {} true or {} false.", flag, flag));
}

// A flag that would have no effect where nothing is drawn; empty: none was given.
std::string_view flag_of_drawing(const GenerationFlags& flags) {
  const generate::SamplingWishes& wishes = flags.sampling;
  if (wishes.greedy && wishes.temperature) return "--temperature";
  if (wishes.top_k) return "--top-k";
  if (wishes.top_p) return "--top-p";
  return flags.seed ? "--seed" : "";
}

void check_sampling(const GenerationFlags& flags) {
  const generate::SamplingWishes& wishes = flags.sampling;
  const std::string_view other = flag_of_drawing(flags);
  if ((wishes.greedy || wishes.temperature == 0.0) && !other.empty()) {
    throw make_error(Code::kUsage, "generate/greedy", "{} was given together with {}",
                     wishes.greedy ? "--greedy" : "--temperature 0", other)
        .hint("Keep one of them: greedy draws nothing.");
  }
  if (wishes.temperature) {
    refuse("--temperature", fmt::format("{}", *wishes.temperature), generate::temperature_fault(*wishes.temperature));
  }
  if (wishes.top_k) refuse("--top-k", fmt::format("{}", *wishes.top_k), generate::top_k_fault(*wishes.top_k));
  if (wishes.top_p) refuse("--top-p", fmt::format("{}", *wishes.top_p), generate::top_p_fault(*wishes.top_p));
}

void set_defaults(config::Loaded& loaded) {
  const std::string& model_dir = loaded.config.model.path;
  if (!loaded.positions.has("bf16")) {
    loaded.config.train.bf16 =
        generate::has_bf16_weights(train::read_model_config(model_dir), base::join_path(model_dir, "config.json"));
  }
  if (!loaded.positions.has("dist_config.reshard_after_forward")) loaded.config.dist.reshard_after_forward = false;
}

}  // namespace

void check_at_least(std::string_view flag, std::optional<int64_t> value, int64_t least) {
  if (!value || *value >= least) return;
  throw make_error(Code::kUsage, fmt::format("generate/{}", flag.substr(2)), "{} {} is below {}", flag, *value, least)
      .hint(fmt::format("Use {} or more.", least));
}

void add_generation_flags(CLI::App& parser, GenerationFlags& flags) {
  parser.add_flag("--greedy", flags.sampling.greedy, "always the most probable token");
  parser.add_option("--temperature", flags.sampling.temperature,
                    "what scores are divided by; 0: greedy; left out: as the model's generation_config.json says");
  parser.add_option("--top-k", flags.sampling.top_k, "draw from so many best tokens; 0: from all; left out: the same");
  parser.add_option("--top-p", flags.sampling.top_p,
                    "draw from the most probable tokens that reach this share; 1: from all; left out: the same");
  parser.add_option("--seed", flags.seed, "of what is drawn (default 42)");
  parser.add_option("--max-new-tokens", flags.max_new_tokens,
                    "longest answer; left out: the key max_new_tokens, or 128");
  parser.add_option("--thinking", flags.thinking, "true or false: whether the answer may begin with a thought");
  parser.add_option("--bf16", flags.bf16, "compute in bf16; left out: where the weights are bf16");
  parser.add_option("--ranks", flags.launch.ranks, "rank threads in this process");
  parser.add_option("--threads-per-rank", flags.launch.threads_per_rank, "intra-op threads of each rank");
}

void check_generation_flags(const GenerationFlags& flags) {
  check_sampling(flags);
  check_choice("--bf16", flags.bf16);
  check_choice("--thinking", flags.thinking);
  check_at_least("--seed", flags.seed, 0);
  check_at_least("--max-new-tokens", flags.max_new_tokens, 1);
  if (flags.max_new_tokens.value_or(1) > kMostNewTokens) {
    throw make_error(Code::kUsage, "generate/max-new-tokens", "--max-new-tokens {} is above {}", *flags.max_new_tokens,
                     kMostNewTokens);
  }
}

config::Loaded load_generation_config(GenerationFlags& flags, const Positionals& positionals) {
  const KeyFlag key_flags[] = {{"--model", flags.model.empty() ? std::nullopt : std::optional(flags.model)},
                               {"--bf16", flags.bf16}};
  const std::vector<std::string> overrides = overrides_with_flags(positionals, key_flags);
  config::Loaded loaded = config::load_config(positionals.config_file, overrides, config::Command::kGenerate);
  for (const std::string& warning : loaded.warnings) base::log_warn("{}", warning);
  flags.launch.timeout = std::chrono::seconds(loaded.config.topology.dist_timeout);
  return loaded;
}

GenerationJob prepare_generation(config::Loaded loaded, const GenerationFlags& flags, int world_size) {
  set_defaults(loaded);
  GenerationJob generation;
  generation.job = train::prepare_model("generate", std::move(loaded), world_size);
  const config::Config& config = generation.job.loaded.config;
  generation.fs = base::make_posix_file_system(Code::kData);
  data::InputOptions input = train::input_options(generation.job);
  input.opens_answer = true;
  if (flags.thinking) input.thinking = *flags.thinking == "true";
  generation.reader = std::make_unique<data::InputReader>(*generation.fs, input);
  if (generation.reader->has_tokenizer()) generation.tokenizer = &generation.reader->tokenizer();
  generation.settings = generate::read_model_settings(*generation.fs, config.model.path, generation.job.model_config,
                                                      input.vocabulary_rows, generation.tokenizer);
  generation.options.sampling = generate::choose_sampling(generation.settings, flags.sampling);
  generation.options.seed = static_cast<uint64_t>(flags.seed.value_or(config.train.seed));
  generation.options.max_new_tokens = flags.max_new_tokens.value_or(config.sample.max_new_tokens);
  return generation;
}

generate::Prompt GenerationJob::prompt_of(data::InputRow row) const {
  generate::Prompt prompt{.ids = std::move(row.input_ids), .end_ids = settings.end_ids};
  if (row.is_conversation && tokenizer != nullptr) {
    if (const auto end = tokenizer->token_to_id(kEndOfTurn)) prompt.end_ids.push_back(*end);
  }
  return prompt;
}

std::string describe_settings(const GenerationJob& generation) {
  const generate::GeneratorOptions& options = generation.options;
  std::string text = generate::describe(options.sampling);
  if (!options.sampling.is_greedy()) text += fmt::format(", seed {}", options.seed);
  text += fmt::format("; up to {} new tokens", options.max_new_tokens);
  const auto& end_ids = generation.settings.end_ids;
  if (!end_ids.empty())
    text += fmt::format("; {} {}", end_ids.size() == 1 ? "ends at" : "ends at one of", fmt::join(end_ids, ", "));
  text += generation.job.loaded.config.train.bf16 ? "; bf16" : "; fp32";
  return text;
}

void log_settings(const GenerationJob& generation) {
  base::log_info("{}", describe_settings(generation));
  if (generation.settings.ignored.empty()) return;
  base::log_warn("generation_config.json asks for {}, which is not built: it has no effect",
                 fmt::join(generation.settings.ignored, ", "));
}

}  // namespace expertmesh::app
