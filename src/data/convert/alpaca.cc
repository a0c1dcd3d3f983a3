// SPDX-License-Identifier: Apache-2.0
// One turn: instruction and input joined without a separator, answered by output; an optional system text.
#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {

Row convert_alpaca(const base::Json& json) {
  fields::refuse_media_columns(json);
  fields::refuse_column(json, "history", "Write earlier turns as conversations and use converter: sharegpt.");
  fields::refuse_column(json, "tools", "Tools need turns: use converter: sharegpt or openai.");
  const base::Json* instruction = fields::find(json, "instruction");
  const base::Json* input = fields::find(json, "input");
  if (input == nullptr) instruction = &fields::require(json, "instruction", "instruction");

  std::string question;
  if (instruction != nullptr) question += fields::text(*instruction, "instruction");
  if (input != nullptr) question += fields::text(*input, "input");
  fields::refuse_media_tags(question, "the question");

  Row row;
  if (const base::Json* system = fields::find(json, "system")) {
    row.messages.push_back(fields::message(Role::kSystem, fields::text(*system, "system")));
  }
  row.messages.push_back(fields::message(Role::kUser, std::move(question)));
  const std::string& output = fields::text(fields::require(json, "output", "output"), "output");
  row.messages.push_back(fields::message(Role::kAssistant, output));
  return row;
}

}  // namespace expertmesh::data
