// SPDX-License-Identifier: Apache-2.0
#include "model/common/json_fields.h"

#include <cmath>

namespace expertmesh::model {

using base::Code;
using base::Json;
using base::make_error;

std::string brief(const Json& value) {
  std::string text = base::dump_json(value);
  constexpr size_t kMost = 60;
  if (text.size() > kMost) {
    text.resize(kMost);
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0U) == 0x80U) text.pop_back();
    text += "...";
  }
  return text;
}

JsonFields::JsonFields(const Json& object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    throw make_error(Code::kModel, "model/config", "expected a JSON object{}, got {}",
                     prefix_.empty() ? "" : " for " + prefix_.substr(0, prefix_.size() - 1), object.kind())
        .at(where_);
  }
}

const Json* JsonFields::find(std::string_view key) const {
  const Json* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

base::Error JsonFields::error(std::string_view key, std::string_view problem) const {
  const Json* value = find(key);
  return make_error(Code::kModel, "model/config", "{}{} is {}, but {}", prefix_, key,
                    value == nullptr ? "not set" : brief(*value), problem)
      .at(where_);
}

base::Error JsonFields::wrong(std::string_view key, const Json& value, std::string_view expected) const {
  return make_error(Code::kModel, "model/config", "{}{} must be {}, got {}", prefix_, key, expected, brief(value))
      .at(where_);
}

base::Error JsonFields::missing(std::string_view key, std::string_view expected) const {
  return make_error(Code::kModel, "model/config", "{}{} is missing: expected {}", prefix_, key, expected).at(where_);
}

int64_t JsonFields::integer(std::string_view key, std::optional<int64_t> fallback, IntRange range) const {
  const std::string expected = fmt::format("an integer from {} to {}", range.least, range.most);
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) throw missing(key, expected);
    return *fallback;
  }
  const std::optional<int64_t> number = value->is_integer() ? value->try_int64() : std::nullopt;
  if (!number || *number < range.least || *number > range.most) throw wrong(key, *value, expected);
  return *number;
}

double JsonFields::number(std::string_view key, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) throw missing(key, "a number");
    return *fallback;
  }
  const std::optional<double> number = value->try_double();
  if (!number || !std::isfinite(*number)) throw wrong(key, *value, "a finite number");
  return *number;
}

double JsonFields::positive(std::string_view key, std::optional<double> fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0.0)) throw wrong(key, *find(key), "a number above 0");
  return value;
}

bool JsonFields::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  const std::optional<bool> boolean = value->try_bool();
  if (!boolean) throw wrong(key, *value, "true or false");
  return *boolean;
}

std::string JsonFields::text(std::string_view key, std::optional<std::string> fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) throw missing(key, "a string");
    return *fallback;
  }
  const std::string* text = value->try_string();
  if (text == nullptr) throw wrong(key, *value, "a string");
  return *text;
}

std::vector<int64_t> JsonFields::integers(std::string_view key, IntRange range) const {
  std::vector<int64_t> numbers;
  const Json* value = find(key);
  if (value == nullptr) return numbers;
  const std::string expected = fmt::format("a list of integers from {} to {}", range.least, range.most);
  const Json::Array* array = value->try_array();
  if (array == nullptr) throw wrong(key, *value, expected);
  for (const Json& item : *array) {
    const std::optional<int64_t> number = item.is_integer() ? item.try_int64() : std::nullopt;
    if (!number || *number < range.least || *number > range.most) throw wrong(key, *value, expected);
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonFields::texts(std::string_view key) const {
  std::vector<std::string> texts;
  const Json* value = find(key);
  if (value == nullptr) return texts;
  const Json::Array* array = value->try_array();
  if (array == nullptr) throw wrong(key, *value, "a list of strings");
  for (const Json& item : *array) {
    const std::string* text = item.try_string();
    if (text == nullptr) throw wrong(key, *value, "a list of strings");
    texts.push_back(*text);
  }
  return texts;
}

JsonFields JsonFields::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) throw missing(key, "a JSON object");
  if (!value->is_object()) throw wrong(key, *value, "a JSON object");
  return {*value, where_, fmt::format("{}{}.", prefix_, key)};
}

}  // namespace expertmesh::model
