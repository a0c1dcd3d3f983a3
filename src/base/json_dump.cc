// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/json.h"

namespace expertmesh::base {
namespace {

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(JsonStyle style) : style_(style) {}

  std::string run(const Json& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Json& value) {
    std::visit([this](const auto& held) { put(held); }, value.value());
  }

  void put(std::nullptr_t) { out_ += "null"; }
  void put(bool value) { out_ += value ? "true" : "false"; }
  void put(int64_t value) { out_ += fmt::to_string(value); }
  void put(uint64_t value) { out_ += fmt::to_string(value); }
  void put(const Json::BigInteger& value) { out_ += value.digits; }
  void put(const std::string& value) { append_quoted(out_, value); }

  void put(double value) {
    if (std::isfinite(value)) {
      out_ += python_float_repr(value);
    } else if (style_ == JsonStyle::kCompact) {
      out_ += "null";
    } else {
      out_ += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    }
  }

  void put(const Json::Array& list) {
    bracketed('[', ']', list, [this](const Json& element) { write(element); });
  }

  void put(const Json::Object& object) {
    bracketed('{', '}', object, [this](const auto& member) {
      append_quoted(out_, member.first);
      out_ += style_ == JsonStyle::kCompact ? ":" : ": ";
      write(member.second);
    });
  }

  template <typename Items, typename Put>
  void bracketed(char open, char close, const Items& items, Put&& put_item) {
    out_ += open;
    depth_ += 1;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += style_ == JsonStyle::kPython ? ", " : ",";
      first = false;
      new_line();
      put_item(item);
    }
    depth_ -= 1;
    if (!items.empty()) new_line();
    out_ += close;
  }

  void new_line() {
    if (style_ != JsonStyle::kPretty) return;
    out_ += '\n';
    out_.append(2 * depth_, ' ');
  }

  JsonStyle style_;
  size_t depth_ = 0;
  std::string out_;
};

}  // namespace

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  // Shortest digits that read back as the same number: "d.ddde+xx".
  char* end = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::scientific).ptr;
  *end = 0;
  char* e = std::find(buffer, end, 'e');
  const long exponent = std::strtol(e + 1, nullptr, 10);
  std::string digits(buffer, e);
  std::erase(digits, '.');
  const std::string sign(std::signbit(value) ? "-" : "");
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : std::string();
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? '-' : '+', std::labs(exponent));
  }
  const auto leading_zeros = static_cast<size_t>(exponent < 0 ? -exponent : 0);
  digits.insert(0, leading_zeros, '0');
  const size_t whole = exponent < 0 ? 1 : static_cast<size_t>(exponent) + 1;  // digits before the point
  if (digits.size() <= whole) digits.append(whole - digits.size() + 1, '0');
  return sign + digits.insert(whole, 1, '.');
}

std::string json_quote(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  append_quoted(out, text);
  return out;
}

std::string dump_json(const Json& value, JsonStyle style) { return Writer(style).run(value); }

}  // namespace expertmesh::base
