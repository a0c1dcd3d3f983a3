// SPDX-License-Identifier: Apache-2.0
// `expertmesh score --model DIR --input ROWS.jsonl [--output OUT.jsonl] [--bf16 true|false] [--ranks N] [key=value
// ...]`
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <optional>

#include "app/command.h"
#include "app/console.h"
#include "app/launch.h"
#include "app/output_file.h"
#include "app/profile_request.h"
#include "app/usage.h"
#include "base/json.h"
#include "base/log.h"
#include "train/scorer.h"

namespace expertmesh::app {
namespace {

struct ScoreArguments {
  LaunchOptions launch;
  std::string model, input, output;
  std::optional<std::string> bf16;  // left out: false
  Positionals positionals;
};

ScoreArguments parse_arguments(const Arguments& arguments) {
  ScoreArguments result;
  std::vector<std::string> positionals;
  auto parser = make_parser("score");
  parser->add_option("--model", result.model, "Hugging Face model directory")->required();
  parser->add_option("--input", result.input, "rows with input_ids, text or messages (jsonl)")->required();
  parser->add_option("--output", result.output, "a line a row: logprobs, nll, tokens; left out: only the summary");
  parser->add_option("--bf16", result.bf16, "compute in bf16 instead of fp32 (default false)");
  parser->add_option("--ranks", result.launch.ranks, "rank threads in this process");
  parser->add_option("--threads-per-rank", result.launch.threads_per_rank, "intra-op threads of each rank");
  parser->add_option("KEY=VALUE", positionals, "configuration keys, for example dist_config.ep_size=2");
  parse(*parser, arguments);
  result.positionals = split_positionals(positionals);
  if (!result.positionals.config_file.empty()) {
    throw base::make_error(base::Code::kUsage, "app/arguments", "score takes no configuration file (\"{}\")",
                           result.positionals.config_file)
        .hint("Give key=value overrides.");
  }
  if (result.bf16 && result.bf16 != "true" && result.bf16 != "false") {
    throw base::make_error(base::Code::kUsage, "score/bf16", "--bf16 is \"{}\", not true or false", *result.bf16)
        .hint("Use --bf16 true or --bf16 false.");
  }
  return result;
}

config::Loaded load(const ScoreArguments& arguments) {
  const KeyFlag flags[] = {{"--model", arguments.model}, {"--bf16", arguments.bf16}};
  config::Loaded loaded =
      config::load_config("", overrides_with_flags(arguments.positionals, flags), config::Command::kScore);
  if (!loaded.positions.has("bf16")) loaded.config.train.bf16 = false;
  for (const std::string& warning : loaded.warnings) base::log_warn("{}", warning);
  return loaded;
}

std::string score_line(const train::RowScore& score) {
  base::Json::Array logprobs;
  for (const float value : score.logprobs) logprobs.emplace_back(static_cast<double>(value));
  return base::dump_json(base::Json(base::Json::Object{{"logprobs", std::move(logprobs)},
                                                       {"nll", score.nll},
                                                       {"tokens", static_cast<int64_t>(score.logprobs.size())}}),
                         base::JsonStyle::kPython);
}

// Lines for the file, where one was asked for, and the sums for the last line.
class ScoreOutput {
 public:
  explicit ScoreOutput(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void add(const train::RowScore& score) {
    if (file_) file_->append(score_line(score) + "\n");
    nll_ += score.nll;
    tokens_ += static_cast<int64_t>(score.logprobs.size());
    ++rows_;
  }
  void finish() {
    if (file_) file_->finish();
    const double mean = tokens_ > 0 ? nll_ / static_cast<double>(tokens_) : 0.0;
    fmt::print("rows {}  tokens {}  mean nll {:.6f}  perplexity {:.4f}\n", rows_, tokens_, mean, std::exp(mean));
  }

 private:
  std::optional<OutputFile> file_;
  double nll_ = 0;
  int64_t tokens_ = 0, rows_ = 0;
};

}  // namespace

void run_score(const Arguments& arguments) {
  ScoreArguments parsed = parse_arguments(arguments);
  refuse_profile_request("score");
  const config::Loaded loaded = load(parsed);
  parsed.launch.timeout = std::chrono::seconds(loaded.config.topology.dist_timeout);

  StatusLine line;
  train::Job job;
  std::vector<data::InputRow> rows;
  std::unique_ptr<ScoreOutput> output;
  launch(
      parsed.launch,
      [&](int world_size) {
        job = train::prepare_model("score", loaded, world_size);
        const auto fs = base::make_posix_file_system(base::Code::kData);
        data::InputOptions options = train::input_options(job);
        options.position_axes = job.blueprint->sizes().position_axes;
        data::InputReader reader(*fs, std::move(options));
        rows = data::load_input_rows(*fs, parsed.input, reader);
      },
      [&](comm::World& world) {
        if (world.rank() == 0) output = std::make_unique<ScoreOutput>(parsed.output);
        RowProgress progress(line, "scoring", rows.size());
        train::run_scoring(world, job, rows, [&](const train::RowScore& score) {
          output->add(score);
          progress.add_row();
        });
        if (world.rank() == 0) {
          line.clear();
          output->finish();
        }
      });
}

}  // namespace expertmesh::app
