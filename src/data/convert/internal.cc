// SPDX-License-Identifier: Apache-2.0
// Rows that are in the internal format already: `messages`, or the pair `chosen_messages` and `rejected_messages`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/suggest.h"
#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {
namespace {

using base::Json;
using fields::bad_row;

// Unknown keys are allowed, but not a misspelled known one: its default would be used without a word.
void check_spelling(const Json& object, std::span<const std::string_view> known, std::string_view what) {
  for (const auto& [key, value] : *object.try_object()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    const auto nearest = config::try_nearest(key, known);
    if (nearest && object.find(*nearest) == nullptr) {
      throw bad_row("{}: unknown key {}", what, key).hint(fmt::format("Did you mean {}?", *nearest));
    }
  }
}

Block read_block(const Json& item, const std::string& what) {
  constexpr std::array<std::string_view, 2> kKnown = {"type", "value"};
  fields::require_object(item, what);
  check_spelling(item, kKnown, what);
  const std::string& type = fields::text(fields::require(item, "type", what + ": type"), what + ": type");
  if (type == "image_url" || type == "video_url" || type == "audio_url") {
    throw bad_row("{} has type {}: media is not supported, only text is", what, type);
  }
  const auto known = try_block_type(type);
  if (!known) throw bad_row("{} has the unknown type {}", what, type).hint("Types are text, reasoning and tool_call.");
  return {*known, fields::text(fields::require(item, "value", what + ": value"), what + ": value")};
}

Message read_message(const Json& item, const std::string& what) {
  constexpr std::array<std::string_view, 3> kKnown = {"role", "content", "loss_weight"};
  fields::require_object(item, what);
  check_spelling(item, kKnown, what);
  const std::string& role = fields::text(fields::require(item, "role", what + ": role"), what + ": role");
  const auto known = try_role(role);
  if (!known) {
    throw bad_row("{} has the unknown role {}", what, role).hint("Roles are system, user, assistant and tool.");
  }
  const Json& content = fields::require(item, "content", what + ": content");
  if (!content.is_array()) {
    throw bad_row("{}: content must be a list of blocks {{type, value}}, not {}", what, content.kind())
        .hint("For rows with plain strings use converter: openai.");
  }
  Message message{*known, {}, 1.0F};
  for (const Json& block : *content.try_array()) {
    message.content.push_back(read_block(block, fmt::format("{}, block {}", what, message.content.size() + 1)));
  }
  if (const Json* weight = fields::find(item, "loss_weight")) {
    message.loss_weight = fields::weight(*weight, what + ": loss_weight");
  }
  return message;
}

std::vector<Message> read_messages(const Json& column, const std::string& name) {
  std::vector<Message> messages;
  for (const Json& item : fields::list(column, name)) {
    messages.push_back(read_message(item, fmt::format("{}, message {}", name, messages.size() + 1)));
  }
  return messages;
}

// A row of another format gets the converter that reads it.
[[noreturn]] void fail_unknown(const Json& row) {
  auto error = bad_row("messages is missing");
  if (row.find("instruction") != nullptr || row.find("output") != nullptr) {
    error.hint("The row looks like alpaca: name it in a dataset-info YAML with converter: alpaca.");
  } else if (row.find("conversations") != nullptr) {
    error.hint("The row looks like sharegpt: name it in a dataset-info YAML with converter: sharegpt.");
  } else if (row.find("chosen") != nullptr) {
    error.hint("The row looks like a preference pair: use converter: pair, for dpo and rm.");
  } else if (row.find("input_ids") != nullptr) {
    error.hint("The row holds token ids: name it in a dataset-info YAML with converter: tokenized.");
  } else {
    error.hint("A row needs messages: a list of {role, content}; other formats need a converter.");
  }
  throw error;
}

}  // namespace

Row convert_internal(const Json& json) {
  Row row;
  if (const Json* chosen = fields::find(json, "chosen_messages")) {
    row.kind = RowKind::kPair;
    row.messages = read_messages(*chosen, "chosen_messages");
    row.rejected = read_messages(fields::require(json, "rejected_messages", "rejected_messages"), "rejected_messages");
  } else if (fields::find(json, "rejected_messages") != nullptr) {
    throw bad_row("chosen_messages is missing beside rejected_messages");
  } else if (const Json* messages = fields::find(json, "messages")) {
    row.messages = read_messages(*messages, "messages");
  } else {
    fail_unknown(json);
  }
  row.tools = fields::tools(json);
  if (const Json* extra = fields::find(json, "extra_info")) row.extra_info = fields::text(*extra, "extra_info");
  return row;
}

}  // namespace expertmesh::data
