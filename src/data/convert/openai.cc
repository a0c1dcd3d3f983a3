// SPDX-License-Identifier: Apache-2.0
// The chat format of the OpenAI API: messages of {role, content, tool_calls}, tools as a list. `weight` 0 or
// `loss_weight` makes an assistant turn context.
#include <fmt/format.h>

#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {
namespace {

using base::Json;
using fields::bad_row;

// A string, or a list of {"type": "text", "text": ...} parts.
void read_content(const Json& content, const std::string& what, Message& message) {
  if (const std::string* text = content.try_string()) {
    message.content.push_back(fields::text_block(*text));
    return;
  }
  if (!content.is_array()) throw bad_row("{}: content must be a string, not {}", what, content.kind());
  for (const Json& part : *content.try_array()) {
    fields::require_object(part, what + ": content part");
    const std::string& type = fields::text(fields::require(part, "type", what + ": type of a content part"), "type");
    if (type != "text") {
      auto error = bad_row("{} has a content part of type {}: only text is supported", what, type);
      if (part.find("value") != nullptr) error.hint("Rows in the internal format need no converter.");
      throw error;
    }
    if (part.find("value") != nullptr && part.find("text") == nullptr) {
      throw bad_row("{} has a block {{type, value}} where a part {{type, text}} is expected", what)
          .hint("Rows in the internal format need no converter.");
    }
    message.content.push_back(fields::text_block(fields::text(fields::require(part, "text", what + ": text"), "text")));
  }
}

// {"type": "function", "function": {"name": ..., "arguments": JSON text or an object}}
std::string read_call(const Json& call, const std::string& what) {
  fields::require_object(call, what);
  const Json& function = fields::require(call, "function", what + ": function");
  fields::require_object(function, what + ": function");
  const std::string& name = fields::text(fields::require(function, "name", what + ": name"), what + ": name");
  Json arguments = fields::require(function, "arguments", what + ": arguments");
  if (const std::string* json = arguments.try_string()) {
    try {
      arguments = base::parse_json(*json);
    } catch (const base::JsonError& error) {
      throw bad_row("{}: arguments is not valid JSON: {}", what, error.message);
    }
  }
  return fields::tool_call(Json(Json::Object{{"name", Json(name)}, {"arguments", std::move(arguments)}}), what);
}

void refuse_key(const Json& item, std::string_view key, const std::string& what, std::string_view hint) {
  if (fields::find(item, key) != nullptr) throw bad_row("{}: {} is not supported", what, key).hint(std::string(hint));
}

float read_weight(const Json& item, Role role, const std::string& what) {
  for (const std::string_view key : {"loss_weight", "weight"}) {
    if (const Json* weight = fields::find(item, key)) return fields::weight(*weight, fmt::format("{}: {}", what, key));
  }
  return role == Role::kAssistant ? 1.0F : 0.0F;
}

Message read_message(const Json& item, const std::string& what) {
  fields::require_object(item, what);
  const std::string& role = fields::text(fields::require(item, "role", what + ": role"), what + ": role");
  const auto known = try_role(role);
  if (!known) {
    throw bad_row("{} has the unknown role {}", what, role).hint("Roles are system, user, assistant and tool.");
  }
  refuse_key(item, "function_call", what, "Write it as tool_calls.");
  refuse_key(item, "audio", what, "Only text is.");
  refuse_key(item, "refusal", what, "Write the refusal as content.");
  Message message{*known, {}, read_weight(item, *known, what)};
  if (const Json* reasoning = fields::find(item, "reasoning_content")) {
    message.content.push_back({BlockType::kReasoning, fields::text(*reasoning, what + ": reasoning_content")});
  }
  const Json* calls = fields::find(item, "tool_calls");
  const Json* content = fields::find(item, "content");
  if (content != nullptr) {
    read_content(*content, what, message);
  } else if (calls == nullptr) {
    throw bad_row("{}: content is missing", what);
  }
  if (calls != nullptr) {
    int number = 0;
    for (const Json& call : fields::list(*calls, what + ": tool_calls")) {
      message.content.push_back(
          {BlockType::kToolCall, read_call(call, fmt::format("{}, tool call {}", what, ++number))});
    }
  }
  return message;
}

}  // namespace

Row convert_openai(const Json& json) {
  Row row;
  for (const Json& item : fields::list(fields::require(json, "messages", "messages"), "messages")) {
    row.messages.push_back(read_message(item, fmt::format("message {}", row.messages.size() + 1)));
  }
  row.tools = fields::tools(json);
  return row;
}

}  // namespace expertmesh::data
