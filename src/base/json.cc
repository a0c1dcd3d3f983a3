// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <charconv>
#include <limits>

#include "base/check.h"

namespace expertmesh::base {

std::string_view Json::kind() const {
  if (is_null()) return "null";
  if (is_bool()) return "a boolean";
  if (is_integer()) return "an integer";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  return is_array() ? "a list" : "an object";
}

std::optional<bool> Json::try_bool() const {
  const bool* value = std::get_if<bool>(&value_);
  return value == nullptr ? std::nullopt : std::optional<bool>(*value);
}

std::optional<int64_t> Json::try_int64() const {
  // What fits is always kept as int64_t by the parser; a uint64_t put in by a caller may fit too.
  if (const auto* value = std::get_if<int64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<uint64_t>(&value_)) {
    if (*value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(*value);
  }
  return std::nullopt;
}

std::optional<double> Json::try_double() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<BigInteger>(&value_)) {
    double number = 0;
    const char* end = value->digits.data() + value->digits.size();
    if (std::from_chars(value->digits.data(), end, number).ec == std::errc()) return number;
  }
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  if (const Object* object = try_object()) {
    for (const auto& [name, value] : *object) {
      if (name == key) return &value;
    }
  }
  return nullptr;
}

void Json::set(std::string_view key, Json value) {
  Object* object = try_object();
  EXPERTMESH_CHECK(object != nullptr, "set({}) on {}", key, kind());
  for (auto& [name, member] : *object) {
    if (name == key) {
      member = std::move(value);
      return;
    }
  }
  object->emplace_back(std::string(key), std::move(value));
}

}  // namespace expertmesh::base
