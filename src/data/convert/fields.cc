// SPDX-License-Identifier: Apache-2.0
#include "data/convert/fields.h"

#include <array>
#include <cmath>

namespace expertmesh::data::fields {
namespace {

using base::Json;

std::string join_keys(const Json& object) {
  std::string names;
  for (const auto& [key, value] : *object.try_object()) {
    if (!names.empty()) names += ", ";
    names += key;
    if (names.size() > 200) return names + ", ...";
  }
  return names.empty() ? "none" : names;
}

bool is_filled(const Json& value) {
  if (const auto* text = value.try_string()) return !text->empty();
  if (const auto* list = value.try_array()) return !list->empty();
  if (const auto* object = value.try_object()) return !object->empty();
  return !value.is_null();
}

}  // namespace

const Json* find(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& require(const Json& object, std::string_view key, std::string_view what) {
  if (const Json* value = find(object, key)) return *value;
  throw bad_row("{} is missing", what).hint(fmt::format("Keys that are there: {}.", join_keys(object)));
}

const std::string& text(const Json& value, std::string_view what) {
  if (const std::string* text = value.try_string()) return *text;
  throw bad_row("{} must be a string, not {}", what, value.kind());
}

const Json::Array& list(const Json& value, std::string_view what) {
  if (const Json::Array* items = value.try_array()) return *items;
  throw bad_row("{} must be a list, not {}", what, value.kind());
}

void require_object(const Json& value, std::string_view what) {
  if (value.is_object()) return;
  throw bad_row("{} must be an object, not {}", what, value.kind());
}

float weight(const Json& value, std::string_view what) {
  const auto number = value.try_double();
  if (!number) throw bad_row("{} must be a number, not {}", what, value.kind());
  if (!(*number >= 0) || !std::isfinite(static_cast<float>(*number))) {
    throw bad_row("{} is {}, but must be at least 0 and finite", what, *number);
  }
  return static_cast<float>(*number);
}

std::optional<std::string> tools(const Json& row) {
  const Json* column = find(row, "tools");
  if (column == nullptr) return std::nullopt;
  Json parsed = *column;
  if (const std::string* json = column->try_string()) {
    if (json->empty()) return std::nullopt;
    try {
      parsed = base::parse_json(*json);
    } catch (const base::JsonError& error) {
      throw bad_row("tools is not valid JSON: {}", error.message);
    }
  }
  if (parsed.is_object()) parsed = Json(Json::Array{parsed});
  const Json::Array* items = parsed.try_array();
  if (items == nullptr) throw bad_row("tools must be a JSON list of objects, not {}", parsed.kind());
  for (const Json& item : *items) {
    if (!item.is_object()) throw bad_row("tools must be a JSON list of objects, but holds {}", item.kind());
  }
  if (items->empty()) return std::nullopt;
  return base::dump_json(parsed, base::JsonStyle::kPython);
}

std::string tool_call(const Json& call, std::string_view what) {
  const Json* name = call.find("name");
  if (!call.is_object() || name == nullptr || !name->is_string() || call.find("arguments") == nullptr) {
    throw bad_row("{}: a tool_call must be a JSON object with name (a string) and arguments", what);
  }
  return base::dump_json(call, base::JsonStyle::kPython);
}

void refuse_media_columns(const Json& row) {
  for (const std::string_view key : {"images", "videos", "audios"}) {
    const Json* column = row.find(key);
    if (column != nullptr && is_filled(*column)) throw bad_row("{}: media is not supported, only text is", key);
  }
}

void refuse_media_tags(std::string_view text, std::string_view what) {
  for (const std::string_view tag : {"<image>", "<video>", "<audio>"}) {
    if (text.find(tag) != std::string_view::npos) {
      throw bad_row("{} has the placeholder {}: media is not supported", what, tag)
          .hint("Where it is meant as text, use the internal message format or converter: openai.");
    }
  }
}

void refuse_column(const Json& row, std::string_view key, std::string_view hint) {
  const Json* column = row.find(key);
  if (column == nullptr || !is_filled(*column)) return;
  throw bad_row("the column {} would be ignored", key).hint(std::string(hint));
}

Block text_block(std::string value) { return {BlockType::kText, std::move(value)}; }

Message message(Role role, std::string value) {
  return {role, {text_block(std::move(value))}, role == Role::kAssistant ? 1.0F : 0.0F};
}

}  // namespace expertmesh::data::fields
