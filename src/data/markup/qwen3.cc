// SPDX-License-Identifier: Apache-2.0
// Qwen3 hybrid: thinks or not. Reasoning of turns before the last question is left out; after it, a turn gets a think
// block where it has reasoning or is the last one. Without thinking, the empty think block is part of the prompt.
#include "data/markup/markups.h"
#include "data/markup/qwen_common.h"
#include "data/markup/strip.h"

namespace expertmesh::data {
namespace {

// The index of the last question; of the last turn where there is none.
size_t last_query(std::span<const Turn> turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].role == Role::kUser && !qwen::is_tool_response(turns[i].text)) return i;
  }
  return turns.empty() ? 0 : turns.size() - 1;
}

void append_assistant(std::string& out, const Turn& turn, bool is_after_query, bool is_last) {
  std::string reasoning = turn.reasoning;
  std::string text = turn.text;
  if (reasoning.empty()) {
    if (auto thought = qwen::split_thought(text)) {
      reasoning = std::move(thought->reasoning);
      text = std::move(thought->answer);
    }
  }
  out += qwen::kOpen;
  out += "assistant\n";
  if (is_after_query && (is_last || !reasoning.empty())) {
    out += "<think>\n";
    out += strip_newlines(reasoning);
    out += "\n</think>\n\n";
    out += lstrip_newlines(text);
  } else {
    out += text;
  }
  qwen::append_json_calls(out, turn.calls, text);
  out += qwen::kClose;
}

}  // namespace

std::string render_qwen3(const RenderInput& input) {
  std::string out;
  qwen::append_system_with_json_tools(out, input);
  const size_t query = last_query(input.turns);
  for (size_t i = 0; i < input.turns.size(); ++i) {
    const Turn& turn = input.turns[i];
    if (turn.role == Role::kAssistant) {
      append_assistant(out, turn, i > query, i + 1 == input.turns.size());
    } else {
      qwen::append_other_turn(out, input.turns, i);
    }
  }
  if (input.open_answer) {
    out += qwen::kOpen;
    out += "assistant\n";
    if (input.thinking == false) out += qwen::kEmptyThought;
  }
  return out;
}

// As in is_qwen3_2507_template, an own system text means an older model; "You are provided with function signatures" is
// said by all of them.
bool is_qwen3_template(std::string_view chat_template) {
  const auto has = [&](std::string_view part) { return chat_template.find(part) != std::string_view::npos; };
  return has("<|im_start|>") && has("enable_thinking") && has("reasoning_content") && has("<think>") &&
         has("<args-json-object>") && has("<tool_response>") && !has("<function=") && !has("You are Qwen") &&
         !has("You are a helpful");
}

}  // namespace expertmesh::data
