// SPDX-License-Identifier: Apache-2.0
// Qwen3.5 and its MoE: all texts are trimmed, tool calls are XML, every turn after the last question has a think block.
#include "base/error.h"
#include "data/markup/markups.h"
#include "data/markup/qwen_common.h"
#include "data/markup/strip.h"

namespace expertmesh::data {
namespace {

using base::Code;
using base::Json;
using base::make_error;

constexpr std::string_view kToolsIntro = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsOutro =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n"
    "</IMPORTANT>";

size_t last_query(std::span<const Turn> turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].role == Role::kUser && !qwen::is_tool_response(strip_space(turns[i].text))) return i;
  }
  throw make_error(Code::kData, "data/markup", "no user message asks for the answer, which the qwen3_5 markup needs")
      .hint("Check the order of the turns: a user turn comes before the first answer.");
}

void append_system(std::string& out, const RenderInput& input) {
  const bool has_system = !input.turns.empty() && input.turns.front().role == Role::kSystem;
  const std::string_view system = has_system ? strip_space(input.turns.front().text) : std::string_view();
  if (input.tools.empty()) {
    if (has_system) qwen::append_message(out, "system", system);
    return;
  }
  std::string text(kToolsIntro);
  qwen::append_tool_lines(text, input.tools);
  text += kToolsOutro;
  if (!system.empty()) {
    text += "\n\n";
    text += system;
  }
  qwen::append_message(out, "system", text);
}

// Python's str() of a JSON value; lists and objects stay JSON.
std::string argument_text(const Json& value) {
  if (const std::string* text = value.try_string()) return *text;
  if (value.is_null()) return "None";
  if (const auto flag = value.try_bool()) return *flag ? "True" : "False";
  return base::dump_json(value, base::JsonStyle::kPython);
}

void append_calls(std::string& out, const std::vector<ToolCall>& calls, std::string_view body) {
  bool is_first = true;
  for (const ToolCall& call : calls) {
    const Json::Object* arguments = call.arguments.try_object();
    if (arguments == nullptr) {
      throw make_error(Code::kData, "data/markup",
                       "a tool_call must be a JSON object with name and arguments, and the qwen3_5 markup needs an "
                       "object as arguments, not {}",
                       call.arguments.kind());
    }
    if (!is_first) out += '\n';
    if (is_first && !strip_space(body).empty()) out += "\n\n";
    is_first = false;
    out += "<tool_call>\n<function=" + call.name + ">\n";
    for (const auto& [name, value] : *arguments) {
      out += "<parameter=" + name + ">\n" + argument_text(value) + "\n</parameter>\n";
    }
    out += "</function>\n</tool_call>";
  }
}

void append_assistant(std::string& out, const Turn& turn, bool is_after_query) {
  std::string reasoning = turn.reasoning;
  std::string text(strip_space(turn.text));
  if (reasoning.empty()) {
    if (auto thought = qwen::split_thought(text)) {
      reasoning = std::move(thought->reasoning);
      text = std::move(thought->answer);
    }
  }
  out += qwen::kOpen;
  out += "assistant\n";
  if (is_after_query) {
    out += "<think>\n";
    out += strip_space(reasoning);
    out += "\n</think>\n\n";
  }
  out += text;
  append_calls(out, turn.calls, text);
  out += qwen::kClose;
}

}  // namespace

std::string render_qwen3_5(const RenderInput& input) {
  std::string out;
  append_system(out, input);
  const size_t query = last_query(input.turns);
  for (size_t i = 0; i < input.turns.size(); ++i) {
    const Turn& turn = input.turns[i];
    if (turn.role == Role::kSystem && i > 0) {
      throw make_error(Code::kData, "data/markup",
                       "message {} is a system turn, but the qwen3_5 markup allows one only first", i + 1);
    }
    if (turn.role == Role::kUser) qwen::append_message(out, "user", strip_space(turn.text));
    if (turn.role == Role::kTool) qwen::append_tool_response(out, input.turns, i, strip_space(turn.text));
    if (turn.role == Role::kAssistant) append_assistant(out, turn, i > query);
  }
  if (input.open_answer) {
    out += qwen::kOpen;
    out += "assistant\n";
    out += input.thinking == false ? qwen::kEmptyThought : std::string_view("<think>\n");
  }
  return out;
}

bool is_qwen3_5_template(std::string_view chat_template) {
  const auto has = [&](std::string_view part) { return chat_template.find(part) != std::string_view::npos; };
  return has("<|im_start|>") && has("enable_thinking") && has("reasoning_content") && has("<function=") &&
         has("<parameter=") && has("<IMPORTANT>") && has("raise_exception");
}

}  // namespace expertmesh::data
