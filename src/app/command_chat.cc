// SPDX-License-Identifier: Apache-2.0
// `expertmesh chat [config.yaml] [--model DIR] [--system TEXT] [flags] [key=value ...]`
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <optional>

#include "app/answer_printer.h"
#include "app/command.h"
#include "app/generation.h"
#include "app/profile_request.h"
#include "app/signals.h"
#include "base/error.h"
#include "base/log.h"

namespace expertmesh::app {
namespace {

struct ChatArguments {
  GenerationFlags flags;
  std::string system;
  Positionals positionals;
};

ChatArguments parse_arguments(const Arguments& arguments) {
  ChatArguments result;
  auto parser = make_parser("chat");
  parser->add_option("CONFIG", result.flags.positionals,
                     "configuration file that names the model, then key=value overrides");
  parser->add_option("--model", result.flags.model, "Hugging Face model directory");
  parser->add_option("--system", result.system, "a system message that every conversation begins with");
  add_generation_flags(*parser, result.flags);
  parse(*parser, arguments);
  result.positionals = split_positionals(result.flags.positionals);
  check_generation_flags(result.flags);
  return result;
}

data::Message message(data::Role role, std::string text) {
  return {.role = role, .content = {{.type = data::BlockType::kText, .value = std::move(text)}}};
}

// The conversation so far, and what the user types; on global rank 0.
class Conversation {
 public:
  Conversation(const GenerationJob& generation, const std::string& system) : generation_(generation) {
    if (!system.empty()) beginning_.messages.push_back(message(data::Role::kSystem, system));
    row_ = beginning_;
  }

  bool is_on_terminal() const { return is_on_terminal_; }

  // The next question with all that was said before it; nothing at the end of the conversation.
  std::optional<data::InputRow> next_question() {
    while (auto line = read_line()) {
      if (*line == "exit") return std::nullopt;
      if (*line == "clear") {
        row_ = beginning_;
        base::log_info("the conversation is forgotten");
      } else if (!line->empty()) {
        if (auto question = ask(std::move(*line))) return question;
      }
    }
    return std::nullopt;
  }
  void add_answer(const std::string& text) { row_.messages.push_back(message(data::Role::kAssistant, text)); }

 private:
  // A line without the white space around it.
  std::optional<std::string> read_line() const {
    if (is_on_terminal_) std::cout << "> " << std::flush;
    std::string line;
    if (!std::getline(std::cin, line)) {
      if (is_on_terminal_) std::cout << std::endl;
      return std::nullopt;
    }
    constexpr std::string_view kSpace = " \t\r";
    const size_t begin = line.find_first_not_of(kSpace);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(kSpace) - begin + 1);
  }

  // A question that cannot be read is told and forgotten: the conversation goes on.
  std::optional<data::InputRow> ask(std::string text) {
    row_.messages.push_back(message(data::Role::kUser, std::move(text)));
    try {
      return generation_.reader->read_conversation(row_);
    } catch (const base::Error& error) {
      if (error.code() != base::Code::kData) throw;
      base::log_warn("{}", error.reason());
      row_.messages.pop_back();
      return std::nullopt;
    }
  }

  const GenerationJob& generation_;
  data::Row beginning_, row_;
  bool is_on_terminal_ = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
};

// One answer, shown as it comes. Collective over the world; `question` is global rank 0's.
void answer(comm::World& world, generate::Generator& generator, const GenerationJob& generation,
            const data::InputRow& question, AnswerPrinter* printer) {
  // Ctrl-C reaches every process; rank threads have one of them.
  std::optional<StoppableAnswer> stoppable;
  if (world.rank() == 0 || !world.shares_memory()) stoppable.emplace();
  generate::Listener listener;
  listener.wants_stop = is_answer_stopped;
  if (printer != nullptr) listener.on_token = [&](size_t, int32_t id) { printer->add(id); };
  bool is_cut = false;
  listener.on_answer = [&](size_t, const generate::Answer& answer) { is_cut = !answer.is_ended; };
  const std::array<generate::Prompt, 1> prompts{generation.prompt_of(question)};
  generator.run(prompts, generation.options, listener);
  if (printer != nullptr) printer->finish();
  if (is_cut) base::log_info("cut at {} tokens; --max-new-tokens allows more", generation.options.max_new_tokens);
}

void chat(comm::World& world, const GenerationJob& generation, const ChatArguments& arguments) {
  std::optional<Conversation> conversation;
  if (world.rank() == 0) {
    log_settings(generation);
    conversation.emplace(generation, arguments.system);
  }
  generate::Generator generator(world, generation.job);
  if (conversation && conversation->is_on_terminal()) {
    base::log_info("`clear` forgets the conversation, `exit` ends it, Ctrl-C stops an answer");
  }
  while (true) {
    std::optional<data::InputRow> question;
    if (conversation) question = conversation->next_question();
    // The others wait here while the user thinks.
    if (world.all().all_reduce_int(question ? 1 : 0, comm::ReduceOp::kMax, "next question") == 0) return;
    std::optional<AnswerPrinter> printer;
    if (question) printer.emplace(*generation.tokenizer, question->opens_thought, conversation->is_on_terminal());
    answer(world, generator, generation, question.value_or(data::InputRow{}), printer ? &*printer : nullptr);
    if (conversation) conversation->add_answer(printer->said());
  }
}

}  // namespace

void run_chat(const Arguments& arguments) {
  refuse_profile_request("chat");
  ChatArguments parsed = parse_arguments(arguments);
  const config::Loaded loaded = load_generation_config(parsed.flags, parsed.positionals);

  GenerationJob generation;
  launch(
      parsed.flags.launch,
      [&](int world_size) {
        generation = prepare_generation(loaded, parsed.flags, world_size);
        // A model without tokenizer or with an unknown template is refused now, not at the first question.
        data::Row row;
        row.messages.push_back(message(data::Role::kUser, "x"));
        generation.reader->read_conversation(row);
      },
      [&](comm::World& world) { chat(world, generation, parsed); });
}

}  // namespace expertmesh::app
