// SPDX-License-Identifier: Apache-2.0
// `expertmesh generate --model DIR --prompt TEXT|--input ROWS.jsonl [--output OUT.jsonl] [flags] [key=value ...]`
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/command.h"
#include "app/console.h"
#include "app/generation.h"
#include "app/output_file.h"
#include "app/profile_request.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "train/agreement.h"

namespace expertmesh::app {
namespace {

using base::Code;
using base::Error;

struct GenerateArguments {
  GenerationFlags flags;
  std::optional<std::string> prompt;
  std::string input, output;
  int64_t batch = 8;
  bool raw = false;
  Positionals positionals;
};

void check_arguments(const GenerateArguments& arguments) {
  const bool has_input = !arguments.input.empty();
  if (has_input == arguments.prompt.has_value()) {
    throw Error(Code::kUsage, "generate/arguments",
                has_input ? "both --prompt and --input were given" : "neither --prompt nor --input was given")
        .hint("Give one of them.");
  }
  if (arguments.prompt && arguments.prompt->empty()) {
    throw Error(Code::kUsage, "generate/prompt", "--prompt is empty").hint("Give some text to answer or continue.");
  }
  if (arguments.raw && has_input) {
    throw Error(Code::kUsage, "generate/raw", "--raw was given with --input")
        .hint("It belongs to --prompt; a row of text is {\"text\": ...}.");
  }
  if (arguments.raw && arguments.flags.thinking) {
    throw Error(Code::kUsage, "generate/thinking", "--thinking was given with --raw")
        .hint("Text that is only continued has no thought to begin with.");
  }
  if (!arguments.positionals.config_file.empty()) {
    throw base::make_error(Code::kUsage, "app/arguments", "generate takes no configuration file (\"{}\")",
                           arguments.positionals.config_file)
        .hint("Give key=value overrides.");
  }
  check_at_least("--batch", arguments.batch, 1);
  check_generation_flags(arguments.flags);
}

GenerateArguments parse_arguments(const Arguments& arguments) {
  GenerateArguments result;
  auto parser = make_parser("generate");
  parser->add_option("--model", result.flags.model, "Hugging Face model directory")->required();
  parser->add_option("--prompt", result.prompt,
                     "one user message to answer; without a chat template, text to continue");
  parser->add_option("--input", result.input, "rows with input_ids, text or messages (jsonl)");
  parser->add_option("--output", result.output, "a line a row; left out: to stdout");
  parser->add_flag("--raw", result.raw, "continue --prompt as it is, without any markup");
  add_generation_flags(*parser, result.flags);
  parser->add_option("--batch", result.batch, "rows at a time on a data-parallel rank (default 8)");
  parser->add_option("KEY=VALUE", result.flags.positionals, "configuration keys, for example dist_config.ep_size=2");
  parse(*parser, arguments);
  result.positionals = split_positionals(result.flags.positionals);
  check_arguments(result);
  return result;
}

data::InputRow read_prompt(const GenerateArguments& arguments, data::InputReader& reader) {
  if (!arguments.raw && reader.has_markup()) {
    data::Row row;
    row.messages.push_back({.role = data::Role::kUser, .content = {{.value = *arguments.prompt}}});
    return reader.read_conversation(row);
  }
  if (arguments.flags.thinking) {
    throw Error(Code::kUsage, "generate/thinking", "--thinking was given, but the model has no chat template")
        .hint("Leave it out, or name the markup with chat_markup=NAME.");
  }
  return reader.read_text(*arguments.prompt);
}

// Of the rows of a file.
void check_thinking(const GenerateArguments& arguments, const std::vector<data::InputRow>& rows) {
  if (!arguments.flags.thinking) return;
  if (std::any_of(rows.begin(), rows.end(), [](const data::InputRow& row) { return row.is_conversation; })) return;
  throw base::make_error(Code::kUsage, "generate/thinking", "--thinking was given, but no row of {} has messages",
                         arguments.input)
      .hint("Leave it out: ids and text are continued as they are.");
}

struct Input {
  std::vector<generate::Prompt> prompts;
  std::string fingerprint;
};

Input read_input(const GenerateArguments& arguments, const GenerationJob& generation) {
  std::vector<data::InputRow> rows;
  if (arguments.prompt) {
    rows.push_back(read_prompt(arguments, *generation.reader));
  } else {
    rows = data::load_input_rows(*generation.fs, arguments.input, *generation.reader);
    check_thinking(arguments, rows);
  }
  Input input{.prompts = {}, .fingerprint = data::fingerprint(rows)};
  for (data::InputRow& row : rows) input.prompts.push_back(generation.prompt_of(std::move(row)));
  return input;
}

// All that was said; the end token is no text.
std::string text_of(const generate::Answer& answer, const data::Tokenizer& tokenizer) {
  data::StreamDecoder decoder(tokenizer);
  std::string text;
  const size_t length = answer.ids.size() - (answer.is_ended ? 1 : 0);
  for (size_t i = 0; i < length; ++i) text += decoder.push(answer.ids[i]);
  return text + decoder.finish();
}

std::string answer_line(const generate::Answer& answer, size_t prompt_tokens, const data::Tokenizer* tokenizer) {
  base::Json::Array ids(answer.ids.begin(), answer.ids.end());
  base::Json::Object row{{"output_ids", std::move(ids)}};
  if (tokenizer != nullptr) row.emplace_back("text", text_of(answer, *tokenizer));
  row.emplace_back("finish_reason", answer.is_ended ? "stop" : "length");
  row.emplace_back("prompt_tokens", static_cast<int64_t>(prompt_tokens));
  row.emplace_back("tokens", static_cast<int64_t>(answer.ids.size()));
  return base::dump_json(base::Json(std::move(row)), base::JsonStyle::kPython) + "\n";
}

// Where answers go on global rank 0: a file, lines on stdout, or for one prompt its text as it comes.
class AnswerOutput {
 public:
  AnswerOutput(const GenerateArguments& arguments, const data::Tokenizer* tokenizer) : tokenizer_(tokenizer) {
    if (!arguments.output.empty()) {
      file_.emplace(arguments.output);
    } else if (arguments.prompt) {
      stream_.emplace(*tokenizer);
    }
  }

  void add_token(int32_t id) {
    if (stream_) print(stream_->push(id));
  }
  void add(const generate::Answer& answer, size_t prompt_tokens) {
    if (stream_) {
      print(stream_->finish() + "\n");
    } else if (file_) {
      file_->append(answer_line(answer, prompt_tokens, tokenizer_));
    } else {
      print(answer_line(answer, prompt_tokens, tokenizer_));
    }
  }
  void finish() {
    if (file_) file_->finish();
  }

 private:
  static void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  const data::Tokenizer* tokenizer_;
  std::optional<OutputFile> file_;
  std::optional<data::StreamDecoder> stream_;
};

double rate(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

void log_stats(size_t rows, const generate::RunStats& stats) {
  base::log_info("{} {}, {} prompt tokens at {:.0f}/s, {} new tokens at {:.1f}/s", rows, rows == 1 ? "row" : "rows",
                 stats.prompt_tokens, rate(stats.prompt_tokens, stats.prompt_seconds), stats.new_tokens,
                 rate(stats.decoded_tokens, stats.decode_seconds));
}

void generate_rows(comm::World& world, const GenerateArguments& arguments, const GenerationJob& generation,
                   const Input& input, StatusLine& line) {
  const std::vector<generate::Prompt>& prompts = input.prompts;
  train::agree_on_input("what is generated", input.fingerprint + "\n" + describe_settings(generation), world.all());
  const bool is_first = world.rank() == 0;
  std::optional<AnswerOutput> output;
  if (is_first) {
    output.emplace(arguments, generation.tokenizer);
    log_settings(generation);
  }
  generate::Generator generator(world, generation.job);
  RowProgress progress(line, "generating", prompts.size());
  generate::Listener listener;
  if (is_first) {
    listener.on_token = [&](size_t, int32_t id) { output->add_token(id); };
    listener.on_answer = [&](size_t row, const generate::Answer& answer) {
      if (arguments.output.empty()) line.clear();
      output->add(answer, prompts[row].ids.size());
      if (arguments.input.empty()) return;
      progress.add_row();
    };
  }
  const generate::RunStats stats = generator.run(prompts, generation.options, listener);
  if (!is_first) return;
  line.clear();
  output->finish();
  log_stats(prompts.size(), stats);
}

}  // namespace

void run_generate(const Arguments& arguments) {
  refuse_profile_request("generate");
  GenerateArguments parsed = parse_arguments(arguments);
  const config::Loaded loaded = load_generation_config(parsed.flags, parsed.positionals);

  StatusLine line;
  GenerationJob generation;
  Input input;
  launch(
      parsed.flags.launch,
      [&](int world_size) {
        generation = prepare_generation(loaded, parsed.flags, world_size);
        generation.options.batch = parsed.batch;
        input = read_input(parsed, generation);
      },
      [&](comm::World& world) { generate_rows(world, parsed, generation, input, line); });
}

}  // namespace expertmesh::app
