// SPDX-License-Identifier: Apache-2.0
// Preference pairs: chosen and rejected conversations of {role, content}. The content of a tool message stays its text.
#include <fmt/format.h>

#include "data/convert/converters.h"
#include "data/convert/fields.h"

namespace expertmesh::data {
namespace {

using base::Json;

std::vector<Message> read_side(const Json& json, const std::string& name) {
  std::vector<Message> messages;
  for (const Json& item : fields::list(fields::require(json, name, name), name)) {
    const std::string what = fmt::format("{}, message {}", name, messages.size() + 1);
    fields::require_object(item, what);
    const std::string& role = fields::text(fields::require(item, "role", what + ": role"), what + ": role");
    const auto known = try_role(role);
    if (!known) {
      throw fields::bad_row("{} has the unknown role {}", what, role)
          .hint("Roles are system, user, assistant and tool.");
    }
    const std::string& content = fields::text(fields::require(item, "content", what + ": content"), what + ": content");
    if (*known != Role::kAssistant) fields::refuse_media_tags(content, what);
    messages.push_back(fields::message(*known, content));
  }
  return messages;
}

}  // namespace

Row convert_pair(const Json& json) {
  fields::refuse_media_columns(json);
  Row row;
  row.kind = RowKind::kPair;
  row.messages = read_side(json, "chosen");
  row.rejected = read_side(json, "rejected");
  row.tools = fields::tools(json);
  return row;
}

}  // namespace expertmesh::data
