// SPDX-License-Identifier: Apache-2.0
// Conversations of {from, value}; a function_call value is JSON, one call or a list of calls. Turn order is free.
#include <fmt/format.h>

#include <array>

#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {
namespace {

using base::Json;
using fields::bad_row;

struct From {
  std::string_view name;
  Role role;
};
constexpr std::array<From, 5> kFrom = {{{"system", Role::kSystem},
                                        {"human", Role::kUser},
                                        {"gpt", Role::kAssistant},
                                        {"observation", Role::kTool},
                                        {"function_call", Role::kAssistant}}};

Message read_calls(const std::string& value, const std::string& what) {
  Json parsed;
  try {
    parsed = base::parse_json(value);
  } catch (const base::JsonError& error) {
    throw bad_row("{}: the function_call value is not valid JSON: {}", what, error.message);
  }
  Message message{Role::kAssistant, {}, 1.0F};
  if (parsed.is_array()) {
    for (const Json& call : *parsed.try_array()) {
      message.content.push_back({BlockType::kToolCall, fields::tool_call(call, what)});
    }
  } else {
    message.content.push_back({BlockType::kToolCall, fields::tool_call(parsed, what)});
  }
  return message;
}

Message read_turn(const Json& turn, const std::string& what) {
  fields::require_object(turn, what);
  const std::string& from = fields::text(fields::require(turn, "from", what + ": from"), what + ": from");
  const std::string& value = fields::text(fields::require(turn, "value", what + ": value"), what + ": value");
  for (const From& known : kFrom) {
    if (known.name != from) continue;
    if (from == "function_call") return read_calls(value, what);
    if (known.role != Role::kAssistant) fields::refuse_media_tags(value, what);
    return fields::message(known.role, value);
  }
  throw bad_row("{}: unknown from {}", what, from).hint("Known are system, human, gpt, observation and function_call.");
}

}  // namespace

Row convert_sharegpt(const Json& json) {
  fields::refuse_media_columns(json);
  fields::refuse_column(json, "system", "Write it as the first turn, with from: system.");
  Row row;
  for (const Json& turn : fields::list(fields::require(json, "conversations", "conversations"), "conversations")) {
    row.messages.push_back(read_turn(turn, fmt::format("conversations, turn {}", row.messages.size() + 1)));
  }
  row.tools = fields::tools(json);
  return row;
}

}  // namespace expertmesh::data
