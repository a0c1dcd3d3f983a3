// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_json.h"

namespace expertmesh::data {

JsonPlace JsonPlace::operator[](std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return JsonPlace(value_ == nullptr ? nullptr : value_->find(key), file_, std::move(path));
}

JsonPlace JsonPlace::item(size_t index) const {
  return JsonPlace(&array().at(index), file_, fmt::format("{}[{}]", path_, index));
}

std::string JsonPlace::where() const { return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_); }

void JsonPlace::fail_kind(std::string_view wanted) const {
  if (value_ == nullptr) fail("is missing; {} is needed", wanted);
  fail("is {}; {} is needed", value_->kind(), wanted);
}

const std::string& JsonPlace::string() const {
  const std::string* text = value_ == nullptr ? nullptr : value_->try_string();
  if (text == nullptr) fail_kind("a string");
  return *text;
}

bool JsonPlace::boolean(bool otherwise) const {
  if (is_absent()) return otherwise;
  const auto flag = value_->try_bool();
  if (!flag) fail_kind("a boolean");
  return *flag;
}

const base::Json::Array& JsonPlace::array() const {
  const base::Json::Array* items = value_ == nullptr ? nullptr : value_->try_array();
  if (items == nullptr) fail_kind("a list");
  return *items;
}

const base::Json::Object& JsonPlace::object() const {
  const base::Json::Object* members = value_ == nullptr ? nullptr : value_->try_object();
  if (members == nullptr) fail_kind("an object");
  return *members;
}

const std::string& JsonPlace::type() const {
  object();
  return (*this)["type"].string();
}

int32_t JsonPlace::id(std::string_view token) const {
  if (value_ == nullptr) fail_kind("a whole number");
  return token_id(*value_, *this, token);
}

int32_t token_id(const base::Json& value, const JsonPlace& place, std::string_view token) {
  const auto id = value.is_integer() ? value.try_int64() : std::nullopt;
  if (!id || *id < 0 || *id > kMaxTokenId) {
    place.fail("the id of token {} is {}; a whole number from 0 to {} is needed", base::json_quote(token),
               base::dump_json(value), kMaxTokenId);
  }
  return static_cast<int32_t>(*id);
}

}  // namespace expertmesh::data
