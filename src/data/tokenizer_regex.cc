// SPDX-License-Identifier: Apache-2.0
// A pass over the expression that copies what both engines read alike and rewrites the rest:
//   \s, \S  White_Space; PCRE2 counts U+180E in, which is no white space any more
//   \p{Han}, ...  scripts; PCRE2 would take script extensions
#include "data/tokenizer_regex.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace expertmesh::data {
namespace {

constexpr std::string_view kSpaceMembers =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
                                            "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
                                            "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
constexpr std::string_view kScripts[] = {"Han",        "Hiragana", "Katakana", "Hangul", "Bopomofo", "Latin",
                                         "Cyrillic",   "Greek",    "Arabic",   "Hebrew", "Thai",     "Lao",
                                         "Devanagari", "Bengali",  "Tamil",    "Telugu", "Khmer",    "Tibetan"};
constexpr std::string_view kGroupStarts[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
constexpr size_t kMaxExpression = 16384;  // bytes
constexpr int kMaxRepeat = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alphanumeric(char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

template <size_t N>
bool holds(const std::string_view (&list)[N], std::string_view item) {
  return std::find(std::begin(list), std::end(list), item) != std::end(list);
}

class Translation {
 public:
  explicit Translation(std::string_view expression) : in_(expression) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(size_t length) const {
    throw base::make_error(base::Code::kModel, "data/tokenizer",
                           "the regular expression has \"{}\" at offset {}, which is not supported",
                           in_.substr(at_, std::max<size_t>(length, 1)), at_);
  }
  bool starts_with(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(size_t length) {
    out_.append(in_.substr(at_, length));
    at_ += length;
  }

  void step() {
    switch (in_[at_]) {
      case '\\':
        escape(false);
        break;
      case '[':
        char_class();
        break;
      case '(':
        group();
        break;
      case '*':
      case '+':
      case '?':
        copy(1);
        if (peek(0) == '?' || peek(0) == '+') copy(1);
        break;
      case '{':
        repeat();
        break;
      case '^':
      case '$':
      case '\0':
        refuse(1);
      default:
        copy(1);
    }
  }

  void group() {
    if (peek(1) != '?') {
      copy(1);
      return;
    }
    for (const std::string_view start : kGroupStarts) {
      if (starts_with(start)) {
        copy(start.size());
        return;
      }
    }
    refuse(3);
  }

  // {n}, {n,} or {n,m}; a lazy one only with a comma, a possessive one means something else to Oniguruma.
  void repeat() {
    const size_t close = in_.find('}', at_);
    const std::string_view body = close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = std::min(body.find(','), body.size());
    const std::string_view low = body.substr(0, comma);
    const std::string_view high = comma < body.size() ? body.substr(comma + 1) : std::string_view{};
    if (!is_count(low) || (!high.empty() && !is_count(high))) refuse(body.size() + 2);
    copy(body.size() + 2);
    if (peek(0) == '+' || (peek(0) == '?' && comma == body.size())) refuse(1);
    if (peek(0) == '?') copy(1);
  }
  static bool is_count(std::string_view text) {
    if (text.empty() || text.size() > 4 || !std::all_of(text.begin(), text.end(), is_digit)) return false;
    int value = 0;
    for (const char c : text) value = value * 10 + (c - '0');
    return value <= kMaxRepeat;
  }

  void char_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse(1);  // a literal for one engine, an error for the other
    while (peek(0) != ']') {
      if (at_ >= in_.size()) refuse(1);
      if (peek(0) == '[' || starts_with("&&") || peek(0) == '\0') refuse(2);
      if (peek(0) == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void escape(bool in_class) {
    const char what = peek(1);
    const bool is_set = what == 's' || what == 'p' || what == 'P' || what == 'd' || what == 'D';
    const bool ends_range = in_class && is_set && out_.back() == '-' && !opens_class(out_[out_.size() - 2]);
    if (ends_range) refuse(2);
    if (what == 's' || what == 'S') {
      if (in_class && what == 'S') refuse(2);
      if (!in_class) out_.append(what == 's' ? "[" : "[^");
      out_.append(kSpaceMembers);
      if (!in_class) out_.append("]");
      at_ += 2;
    } else if (what == 'p' || what == 'P') {
      property();
    } else if (what == 'r' || what == 'n' || what == 't' || what == 'f' || what == 'd' || what == 'D') {
      copy(2);
    } else if (what > ' ' && what < 0x7f && !is_alphanumeric(what)) {
      copy(2);
    } else {
      refuse(2);
    }
    if (in_class && is_set && peek(0) == '-' && peek(1) != ']') refuse(2);  // a set cannot start a range
  }
  static bool opens_class(char c) { return c == '[' || c == '^'; }

  void property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse(3);
    const size_t length = close + 1 - at_;
    std::string_view name = in_.substr(at_ + 3, length - 4);
    const bool inverted = name.starts_with('^');
    if (inverted) name.remove_prefix(1);
    const bool is_script = holds(kScripts, name);
    if (!is_script && !holds(kCategories, name)) refuse(length);
    const bool negative = (peek(1) == 'P') != inverted;
    out_.append(negative ? "\\P{" : "\\p{").append(is_script ? "sc:" : "").append(name).append("}");
    at_ += length;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_expression(std::string_view expression) {
  if (expression.size() > kMaxExpression) {
    throw base::make_error(base::Code::kModel, "data/tokenizer",
                           "the regular expression has {} bytes; at most {} are read", expression.size(),
                           kMaxExpression);
  }
  return Translation(expression).run();
}

}  // namespace expertmesh::data
