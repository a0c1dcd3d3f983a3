// SPDX-License-Identifier: Apache-2.0
// Pieces that the markups of the Qwen family share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/markup/markup.h"

namespace expertmesh::data::qwen {

constexpr std::string_view kOpen = "<|im_start|>";
constexpr std::string_view kClose = "<|im_end|>\n";
constexpr std::string_view kEmptyThought = "<think>\n\n</think>\n\n";

// "<|im_start|>ROLE\nTEXT<|im_end|>\n"
void append_message(std::string& out, std::string_view role, std::string_view text);

// Python's json.dumps of each tool on a line of its own, each after a newline.
void append_tool_lines(std::string& out, std::span<const base::Json> tools);

// The system block of Qwen3 with or without tools; nothing where there is neither a system text nor a tool.
void append_system_with_json_tools(std::string& out, const RenderInput& input);

// Tool calls as JSON between <tool_call> tags; `body` is the text before them.
void append_json_calls(std::string& out, const std::vector<ToolCall>& calls, std::string_view body);

// A tool result; neighbours share one user block.
void append_tool_response(std::string& out, std::span<const Turn> turns, size_t at, std::string_view text);

// A turn that is not the assistant's: a tool result, or a message; a system text that comes first is in its block
// already.
void append_other_turn(std::string& out, std::span<const Turn> turns, size_t at);

// True for a user text that is a wrapped tool result and so no question.
bool is_tool_response(std::string_view text);

// Reasoning and answer of a text that holds "</think>"; nothing for other texts.
struct Thought {
  std::string reasoning, answer;
};
std::optional<Thought> split_thought(std::string_view text);

}  // namespace expertmesh::data::qwen
