// SPDX-License-Identifier: Apache-2.0
#include "data/markup/qwen_common.h"

#include "data/markup/strip.h"

namespace expertmesh::data::qwen {
namespace {

constexpr std::string_view kToolsIntro =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsOutro =
    "\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    "tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

}  // namespace

void append_message(std::string& out, std::string_view role, std::string_view text) {
  out += kOpen;
  out += role;
  out += '\n';
  out += text;
  out += kClose;
}

void append_tool_lines(std::string& out, std::span<const base::Json> tools) {
  for (const base::Json& tool : tools) {
    out += '\n';
    out += base::dump_json(tool, base::JsonStyle::kPython);
  }
}

void append_system_with_json_tools(std::string& out, const RenderInput& input) {
  const bool has_system = !input.turns.empty() && input.turns.front().role == Role::kSystem;
  if (input.tools.empty()) {
    if (has_system) append_message(out, "system", input.turns.front().text);
    return;
  }
  std::string text;
  if (has_system) text = input.turns.front().text + "\n\n";
  text += kToolsIntro;
  append_tool_lines(text, input.tools);
  text += kToolsOutro;
  append_message(out, "system", text);
}

void append_json_calls(std::string& out, const std::vector<ToolCall>& calls, std::string_view body) {
  bool is_first = true;
  for (const ToolCall& call : calls) {
    if (!is_first || !body.empty()) out += '\n';
    is_first = false;
    out += "<tool_call>\n{\"name\": \"";
    out += call.name;
    out += "\", \"arguments\": ";
    const std::string* text = call.arguments.try_string();
    out += text != nullptr ? *text : base::dump_json(call.arguments, base::JsonStyle::kPython);
    out += "}\n</tool_call>";
  }
}

void append_tool_response(std::string& out, std::span<const Turn> turns, size_t at, std::string_view text) {
  if (at == 0 || turns[at - 1].role != Role::kTool) {
    out += kOpen;
    out += "user";
  }
  out += "\n<tool_response>\n";
  out += text;
  out += "\n</tool_response>";
  if (at + 1 == turns.size() || turns[at + 1].role != Role::kTool) out += kClose;
}

void append_other_turn(std::string& out, std::span<const Turn> turns, size_t at) {
  const Turn& turn = turns[at];
  if (turn.role == Role::kTool) {
    append_tool_response(out, turns, at, turn.text);
  } else if (turn.role == Role::kUser || at > 0) {
    append_message(out, role_name(turn.role), turn.text);
  }
}

bool is_tool_response(std::string_view text) {
  return text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
}

std::optional<Thought> split_thought(std::string_view text) {
  constexpr std::string_view kBegin = "<think>";
  constexpr std::string_view kEnd = "</think>";
  const size_t first = text.find(kEnd);
  if (first == std::string_view::npos) return std::nullopt;
  std::string_view reasoning = rstrip_newlines(text.substr(0, first));
  const size_t begin = reasoning.rfind(kBegin);
  if (begin != std::string_view::npos) reasoning.remove_prefix(begin + kBegin.size());
  const std::string_view answer = text.substr(text.rfind(kEnd) + kEnd.size());
  return Thought{std::string(lstrip_newlines(reasoning)), std::string(lstrip_newlines(answer))};
}

}  // namespace expertmesh::data::qwen
