// SPDX-License-Identifier: Apache-2.0
// Strict JSON for untrusted text: duplicate keys, bad UTF-8, depth and size limits and trailing bytes are errors,
// numbers keep whether they were integers, objects keep their order. No silent conversions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace expertmesh::base {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  // An integer that fits neither int64 nor uint64: kept as its digits, so that it is written back unchanged.
  struct BigInteger {
    std::string digits;  // with its sign
    bool operator==(const BigInteger& other) const = default;
  };
  // An integer is int64_t where it fits, else uint64_t, else BigInteger.
  using Value = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, Object, BigInteger>;

  Json() : value_(nullptr) {}
  // Implicit on purpose: {{"a", 1}, {"b", "x"}} reads as what it is. NOLINTBEGIN(google-explicit-constructor)
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  Json(BigInteger value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_) ||
           std::holds_alternative<BigInteger>(value_);
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // "null", "a boolean", "an integer", "a number", "a string", "a list", "an object": for messages.
  std::string_view kind() const;

  // Readers of one kind; nothing where the value is of another kind or out of range.
  std::optional<bool> try_bool() const;
  std::optional<int64_t> try_int64() const;
  std::optional<double> try_double() const;  // integers too
  const std::string* try_string() const { return std::get_if<std::string>(&value_); }
  const Array* try_array() const { return std::get_if<Array>(&value_); }
  const Object* try_object() const { return std::get_if<Object>(&value_); }
  Array* try_array() { return std::get_if<Array>(&value_); }
  Object* try_object() { return std::get_if<Object>(&value_); }

  // The member of an object; nullptr where there is none or this is no object.
  const Json* find(std::string_view key) const;
  // Replaces or appends a member. Programmer error where this is no object.
  void set(std::string_view key, Json value);

  const Value& value() const { return value_; }
  bool operator==(const Json& other) const = default;

 private:
  Value value_;
};

struct JsonLimits {
  int max_depth = 256;
  int64_t max_nodes = INT64_MAX;
};

// Parses one document that fills the whole text (white space around it is allowed; a byte order mark is not: strip
// it first). Errors: the given code is the caller's; throws JsonError with byte offset, line and column.
struct JsonError : std::exception {
  std::string message;  // "duplicate key \"a\"", "invalid UTF-8", ...
  size_t offset = 0;    // bytes from the start
  int line = 1;         // from 1
  int column = 1;       // bytes, from 1
  const char* what() const noexcept override { return message.c_str(); }
};
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// A parsed tree is as deep as max_depth allows; destroying and printing it recurse to that depth, so keep it moderate.
// Compact: {"a":1}; a number that is not finite becomes null. Python: {"a": 1, "b": [1, 2]} exactly as
// json.dumps(ensure_ascii=False) writes it, floats too (NaN, Infinity). Pretty: two spaces an indent, as
// json.dumps(indent=2, ensure_ascii=False).
enum class JsonStyle { kCompact, kPython, kPretty };
std::string dump_json(const Json& value, JsonStyle style = JsonStyle::kCompact);

// A number as Python's repr writes it: 1.0, 1e-05, 1e+16, 0.1, nan, inf.
std::string python_float_repr(double value);

// A quoted and escaped JSON string.
std::string json_quote(std::string_view text);

// The offset of the first byte that is not UTF-8 (overlong forms, surrogates and code points past U+10FFFF are not).
std::optional<size_t> find_invalid_utf8(std::string_view text);

}  // namespace expertmesh::base
