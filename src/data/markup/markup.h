// SPDX-License-Identifier: Apache-2.0
// Chat markups: how a conversation becomes text. One file and one table row each (spec 4.5, 4.6).
// Why not the model's Jinja template: nothing from a model directory is executed; `auto` recognises it instead.
// Errors: kData without a place for a conversation that the markup cannot express.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/sample.h"

namespace expertmesh::data {

struct ToolCall {
  std::string name;
  base::Json arguments;
};

// A message as markups see it: blocks joined, special tokens of the tokenizer already broken in the text.
struct Turn {
  Role role = Role::kUser;
  std::string text;
  std::string reasoning;  // empty = none
  std::vector<ToolCall> calls;
};

struct RenderInput {
  std::span<const Turn> turns;
  std::span<const base::Json> tools;
  bool open_answer = false;      // append the opening of the next assistant turn
  std::optional<bool> thinking;  // enable_thinking; nothing = the template's default
};

struct Markup {
  std::string_view name;
  bool knows_thinking;  // RenderInput::thinking makes a difference
  std::string (*render)(const RenderInput& input);
  // True where the given Jinja template text is this markup's.
  bool (*recognise)(std::string_view chat_template);
};

std::span<const Markup> markups();
const Markup* find_markup(std::string_view name);

// The markup for `chat_markup`; for "auto", the one that the model's chat template (nothing = there is none) is
// recognised as. Errors: kConfig for an unknown name or an unknown template, naming chat_markup.
const Markup& choose_markup(std::string_view chat_markup, const std::optional<std::string>& chat_template);

}  // namespace expertmesh::data
