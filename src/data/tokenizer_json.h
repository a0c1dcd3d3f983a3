// SPDX-License-Identifier: Apache-2.0
// Typed access to the JSON of tokenizer files: a value and where it stands, for messages.
// Errors: kModel, "tokenizer.json: model.vocab: ...".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace expertmesh::data {

class JsonPlace {
 public:
  JsonPlace(const base::Json* value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  // The member, which may be absent.
  JsonPlace operator[](std::string_view key) const;
  JsonPlace item(size_t index) const;

  bool is_absent() const { return value_ == nullptr || value_->is_null(); }  // not there, or null
  bool is_string() const { return value_ != nullptr && value_->is_string(); }
  bool is_object() const { return value_ != nullptr && value_->is_object(); }
  const std::string& string() const;
  bool boolean(bool otherwise) const;  // `otherwise` where it is absent
  const base::Json::Array& array() const;
  const base::Json::Object& object() const;
  int32_t id(std::string_view token) const;  // of the token that is named for messages
  // The "type" member of an object.
  const std::string& type() const;

  std::string where() const;
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw base::make_error(base::Code::kModel, "data/tokenizer", format, std::forward<Args>(args)...).at(where());
  }

 private:
  [[noreturn]] void fail_kind(std::string_view wanted) const;

  const base::Json* value_;
  std::string file_, path_;
};

// Largest id that is accepted: leaves room for "one more" in int32.
constexpr int64_t kMaxTokenId = INT32_MAX - 1;

// The id a value stands for; fails at `place` and names the token.
int32_t token_id(const base::Json& value, const JsonPlace& place, std::string_view token);

}  // namespace expertmesh::data
