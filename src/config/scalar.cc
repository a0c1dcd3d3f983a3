// SPDX-License-Identifier: Apache-2.0
#include "config/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace expertmesh::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

// One spelling in the three cases that YAML 1.1 knows: true, True, TRUE.
bool is_word(std::string_view text, std::string_view word) {
  if (lower(text) != word) return false;
  if (text == word) return true;
  const std::string_view tail = text.substr(1);
  const bool tail_lower = lower(tail) == tail;
  const bool tail_upper = std::none_of(tail.begin(), tail.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  const bool head_upper = text[0] >= 'A' && text[0] <= 'Z';
  return head_upper && (tail_lower || tail_upper);
}

std::optional<bool> plain_bool(std::string_view text) {
  for (const char* word : {"true", "yes", "on"}) {
    if (is_word(text, word)) return true;
  }
  for (const char* word : {"false", "no", "off"}) {
    if (is_word(text, word)) return false;
  }
  return std::nullopt;
}

std::string_view without_sign(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text;
}

bool all_digits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

// Digits with single underscores between them, without the underscores (1_000_000).
std::optional<std::string> strip_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    if (i == 0 || i + 1 >= text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) return std::nullopt;
  }
  return out;
}

bool has_leading_zero(std::string_view text) {
  const std::string_view digits = without_sign(text);
  return digits.size() > 1 && digits[0] == '0' && (is_digit(digits[1]) || digits[1] == '_');
}

// Hexadecimal, octal and binary spellings of YAML 1.1 and 1.2.
bool has_radix_prefix(std::string_view text) {
  const std::string digits = lower(without_sign(text));
  return digits.size() > 1 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'o' || digits[1] == 'b');
}

// digits [. digits] [e digits], or . digits; true also for integers.
bool has_number_shape(std::string_view text) {
  text = without_sign(text);
  size_t i = 0, digits = 0;
  while (i < text.size() && is_digit(text[i])) ++i, ++digits;
  if (i < text.size() && text[i] == '.') {
    ++i;
    while (i < text.size() && is_digit(text[i])) ++i, ++digits;
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    return all_digits(text.substr(i));
  }
  return i == text.size();
}

std::optional<double> special_number(std::string_view text) {
  for (const char* nan : {".nan", ".NaN", ".NAN"}) {
    if (text == nan) return std::numeric_limits<double>::quiet_NaN();
  }
  for (const char* infinity : {".inf", ".Inf", ".INF"}) {
    if (without_sign(text) == infinity) {
      return text[0] == '-' ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    }
  }
  return std::nullopt;
}

ValueError wrong(const Node& node, const std::string& expectation, std::string hint = {}) {
  return {fmt::format("is {}, expected {}", describe(node), expectation), std::move(hint)};
}

ValueError wrong_zero(const Node& node, const std::string& expectation) {
  return wrong(node, expectation, "A leading zero is octal to some readers: write the number without it.");
}

// Quoted text stands for a number or boolean only in sections, and only in upstream's forms.
bool counts_as_plain(const Node& node, Quotes quotes) {
  if (!node.is_quoted) return true;
  if (quotes == Quotes::kText) return false;
  if (lower(node.text) == "true" || lower(node.text) == "false") return true;
  const auto dots = std::count(node.text.begin(), node.text.end(), '.');
  std::string digits = node.text;
  std::erase(digits, '.');
  return dots <= 1 && all_digits(digits);
}

std::string quote_hint(const Node& node, Quotes quotes) {
  return node.is_scalar() && node.is_quoted && !counts_as_plain(node, quotes) &&
                 (has_number_shape(node.text) || plain_bool(node.text))
             ? "Remove the quotes."
             : "";
}

}  // namespace

// Limits that only keep arithmetic safe are told to those who meet them.
std::string integer_expectation(const IntegerRange& range) {
  if (range.min == INT64_MIN && range.max == INT64_MAX) return "an integer";
  if (range.max > (1 << 16)) return fmt::format("an integer of at least {}", range.min);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string number_expectation(const NumberRange& range) {
  const bool has_min = range.min > -1e300, has_max = range.max < 1e300;
  if (has_min && has_max) {
    return range.excludes_min ? fmt::format("a number above {} and up to {}", range.min, range.max)
                              : fmt::format("a number from {} to {}", range.min, range.max);
  }
  if (!has_min) return "a number";
  return range.excludes_min ? fmt::format("a number above {}", range.min)
                            : fmt::format("a number of at least {}", range.min);
}

bool read_bool(const Node& node, Quotes quotes) {
  if (node.is_scalar() && counts_as_plain(node, quotes)) {
    if (node.is_quoted) {
      if (lower(node.text) == "true") return true;
      if (lower(node.text) == "false") return false;
    } else if (const auto value = plain_bool(node.text)) {
      return *value;
    }
  }
  throw wrong(node, "true or false", quote_hint(node, quotes));
}

int64_t read_integer(const Node& node, const IntegerRange& range, Quotes quotes) {
  const std::string expectation = integer_expectation(range);
  if (!node.is_scalar() || !counts_as_plain(node, quotes)) throw wrong(node, expectation, quote_hint(node, quotes));
  if (has_leading_zero(node.text)) throw wrong_zero(node, expectation);
  if (has_radix_prefix(node.text)) throw wrong(node, expectation, "Write it in decimal.");
  const auto stripped = strip_underscores(node.text);
  if (!stripped || !all_digits(without_sign(*stripped))) {
    const bool is_number = stripped && has_number_shape(*stripped);
    throw wrong(node, expectation, is_number ? "Write it without a point or an exponent." : "");
  }
  std::string_view digits = *stripped;
  if (digits[0] == '+') digits.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool is_whole = end == digits.data() + digits.size();
  if (error == std::errc::result_out_of_range || (is_whole && value > range.max)) {
    throw wrong(node, fmt::format("an integer from {} to {}", range.min, range.max));
  }
  if (error != std::errc() || !is_whole || value < range.min) throw wrong(node, expectation);
  return value;
}

double read_number(const Node& node, const NumberRange& range, Quotes quotes) {
  const std::string expectation = number_expectation(range);
  if (!node.is_scalar() || !counts_as_plain(node, quotes)) throw wrong(node, expectation, quote_hint(node, quotes));
  if (const auto special = special_number(node.text)) {
    if (range.allows_infinity && std::isinf(*special) && *special > 0) return *special;
    throw wrong(node, expectation);
  }
  if (has_leading_zero(node.text)) throw wrong_zero(node, expectation);
  const auto stripped = strip_underscores(node.text);
  if (!stripped || !has_number_shape(*stripped)) throw wrong(node, expectation);
  std::string_view digits = *stripped;
  if (digits[0] == '+') digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) throw wrong(node, expectation, "A double does not hold this number.");
  if (error != std::errc() || end != digits.data() + digits.size()) throw wrong(node, expectation);
  if (value < range.min || value > range.max || (range.excludes_min && value <= range.min)) {
    throw wrong(node, expectation);
  }
  return value == 0 ? 0.0 : value;  // -0 is 0
}

bool looks_like_other_type(std::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return true;
  if (plain_bool(text) || special_number(text)) return true;
  const auto stripped = strip_underscores(text);
  return has_radix_prefix(text) || (stripped && has_number_shape(*stripped));
}

std::string read_text(const Node& node, bool any_scalar) {
  if (!node.is_scalar()) throw wrong(node, "text");
  if (!node.is_quoted && !any_scalar && looks_like_other_type(node.text)) {
    throw wrong(node, "text", fmt::format("Put it in quotes: \"{}\".", shorten(node.text)));
  }
  if (node.text.find('\0') != std::string::npos) throw wrong(node, "text without a NUL character");
  return node.text;
}

}  // namespace expertmesh::config
