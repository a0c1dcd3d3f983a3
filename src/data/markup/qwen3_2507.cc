// SPDX-License-Identifier: Apache-2.0
// Qwen3 Instruct 2507: as Qwen3 without any thinking. Reasoning blocks are left out, think tags in a text are text.
#include "data/markup/markups.h"
#include "data/markup/qwen_common.h"

namespace expertmesh::data {

std::string render_qwen3_2507(const RenderInput& input) {
  std::string out;
  qwen::append_system_with_json_tools(out, input);
  for (size_t i = 0; i < input.turns.size(); ++i) {
    const Turn& turn = input.turns[i];
    if (turn.role == Role::kAssistant) {
      out += qwen::kOpen;
      out += "assistant\n";
      out += turn.text;
      qwen::append_json_calls(out, turn.calls, turn.text);
      out += qwen::kClose;
    } else {
      qwen::append_other_turn(out, input.turns, i);
    }
  }
  if (input.open_answer) {
    out += qwen::kOpen;
    out += "assistant\n";
  }
  return out;
}

// Older Qwen templates look alike but put a system text of their own in front.
bool is_qwen3_2507_template(std::string_view chat_template) {
  const auto has = [&](std::string_view part) { return chat_template.find(part) != std::string_view::npos; };
  return has("<|im_start|>") && has("<args-json-object>") && has("<tool_response>") && !has("think") &&
         !has("reasoning") && !has("<function=") && !has("You are Qwen") && !has("You are a helpful");
}

}  // namespace expertmesh::data
