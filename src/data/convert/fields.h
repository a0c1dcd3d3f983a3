// SPDX-License-Identifier: Apache-2.0
// Typed access to the fields of a row, shared by the converters. A null field is an absent one.
// Errors: kData without a place, naming the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/sample.h"

namespace expertmesh::data::fields {

template <typename... Args>
base::Error bad_row(fmt::format_string<Args...> format, Args&&... args) {
  return base::make_error(base::Code::kData, "data/convert", format, std::forward<Args>(args)...);
}

// The member, or nullptr where it is absent or null.
const base::Json* find(const base::Json& object, std::string_view key);
// The member; an error that lists the keys that are there instead.
const base::Json& require(const base::Json& object, std::string_view key, std::string_view what);

// `what` names the value in messages: "output", "message 2: content".
const std::string& text(const base::Json& value, std::string_view what);
const base::Json::Array& list(const base::Json& value, std::string_view what);
void require_object(const base::Json& value, std::string_view what);

// A loss_weight: a finite number of at least 0.
float weight(const base::Json& value, std::string_view what);

// JSON text of the tools column, written as Python's json.dumps does; nothing where there are none.
std::optional<std::string> tools(const base::Json& row);
// JSON text of one tool call, {"name": ..., "arguments": ...}, checked.
std::string tool_call(const base::Json& call, std::string_view what);

// Media is not supported: refuses filled columns images, videos, audios.
void refuse_media_columns(const base::Json& row);
// ... and placeholders such as <image> in text.
void refuse_media_tags(std::string_view text, std::string_view what);

// A column that would be ignored although it means something to the person who wrote it.
void refuse_column(const base::Json& row, std::string_view key, std::string_view hint);

Block text_block(std::string value);
Message message(Role role, std::string value);  // one text block; weight 1 for the assistant, else 0

}  // namespace expertmesh::data::fields
