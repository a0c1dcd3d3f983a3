// SPDX-License-Identifier: Apache-2.0
// One loop over the text with a stack of "inside an object or a list" flags: depth costs a bit of heap, never stack.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <unordered_set>

#include "base/json_events.h"

namespace expertmesh::base {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(std::string_view text, const JsonLimits& limits, JsonEvents& events)
      : text_(text), limits_(limits), events_(events) {}

  void run() {
    if (const auto bad = find_invalid_utf8(text_)) fail(*bad, "invalid UTF-8");
    skip_space();
    value();
    while (!stack_.empty()) step();
    skip_space();
    if (at_ < text_.size()) fail(at_, "text after the end of the JSON value");
  }

 private:
  [[noreturn]] void fail(size_t offset, std::string message) const {
    throw json_error_at(text_, offset, std::move(message));
  }

  [[noreturn]] void fail_here(std::string_view expected) const {
    if (at_ >= text_.size()) fail(text_.size(), fmt::format("end of the JSON text where {} was expected", expected));
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte < 0x20 || byte == 0x7f) fail(at_, fmt::format("control character 0x{:02x} in JSON text", byte));
    size_t length = 1;  // whole characters in messages
    while (at_ + length < text_.size() && (static_cast<unsigned char>(text_[at_ + length]) & 0xc0U) == 0x80U) ++length;
    fail(at_, fmt::format("'{}' where {} was expected in JSON text", text_.substr(at_, length), expected));
  }

  template <typename Call>
  void report(size_t offset, Call&& call) {
    try {
      call();
    } catch (const JsonRefusal& refusal) {
      fail(offset, refusal.message);
    }
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // Inside an open object or list: one member, or its end.
  void step() {
    const bool in_object = stack_.back();
    skip_space();
    if (take(in_object ? '}' : ']')) {
      if (after_comma_) fail(at_ - 1, "comma before the closing bracket in JSON text");
      close();
      return;
    }
    if (!fresh_ && !after_comma_) {
      if (!take(',')) fail_here(in_object ? "a comma or '}'" : "a comma or ']'");
      after_comma_ = true;
      return;
    }
    fresh_ = after_comma_ = false;
    if (in_object) key();
    value();
  }

  void key() {
    const size_t begin = at_;
    if (at_ >= text_.size() || text_[at_] != '"') fail_here("a key in double quotes");
    const std::string_view name = string();
    report(begin, [&] { events_.on_key(name); });
    skip_space();
    if (!take(':')) fail_here("a colon");
    skip_space();
  }

  void value() {
    const size_t begin = at_;
    if (++nodes_ > limits_.max_nodes) fail(begin, fmt::format("more than {} JSON values", limits_.max_nodes));
    if (at_ >= text_.size()) fail_here("a value");
    const char c = text_[at_];
    if (c == '{' || c == '[') {
      open(c == '{');
    } else if (c == '"') {
      const std::string_view text = string();
      report(begin, [&] { events_.on_scalar(Json(text)); });
    } else if (c == '-' || is_digit(c)) {
      Json parsed = number();
      report(begin, [&] { events_.on_scalar(std::move(parsed)); });
    } else {
      Json parsed = word();
      report(begin, [&] { events_.on_scalar(std::move(parsed)); });
    }
  }

  void open(bool is_object) {
    if (stack_.size() >= static_cast<size_t>(std::max(limits_.max_depth, 0))) {
      fail(at_, fmt::format("JSON nested deeper than {} levels", limits_.max_depth));
    }
    report(at_, [&] { events_.on_begin(is_object); });
    ++at_;
    stack_.push_back(is_object);
    fresh_ = true;
  }

  void close() {
    const bool is_object = stack_.back();
    stack_.pop_back();
    fresh_ = false;
    report(at_ - 1, [&] { events_.on_end(is_object); });
  }

  Json word() {
    const auto is = [&](std::string_view name) { return text_.substr(at_).starts_with(name); };
    const auto taken = [&](size_t length, Json value) {
      at_ += length;
      return value;
    };
    if (is("null")) return taken(4, nullptr);
    if (is("true")) return taken(4, true);
    if (is("false")) return taken(5, false);
    if (is("NaN") || is("Infinity")) fail(at_, "NaN and Infinity are not JSON");
    fail_here("a value");
  }

  Json number() {
    const size_t begin = at_;
    take('-');
    if (take('0')) {
      if (at_ < text_.size() && is_digit(text_[at_])) fail(begin, "a JSON number with a leading zero");
    } else if (!digits()) {
      if (text_.substr(at_).starts_with("Infinity")) fail(begin, "NaN and Infinity are not JSON");
      fail_here("a digit");
    }
    bool is_integer = true;
    if (take('.')) {
      is_integer = false;
      if (!digits()) fail_here("a digit");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      is_integer = false;
      ++at_;
      if (!take('+')) take('-');
      if (!digits()) fail_here("a digit");
    }
    const std::string_view token = text_.substr(begin, at_ - begin);
    return is_integer ? integer(token) : real(token, begin);
  }

  bool digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > begin;
  }

  static Json integer(std::string_view token) {
    const char* begin = token.data();
    const char* end = begin + token.size();
    int64_t small = 0;
    if (std::from_chars(begin, end, small).ec == std::errc()) return small;
    uint64_t large = 0;
    if (token[0] != '-' && std::from_chars(begin, end, large).ec == std::errc()) return large;
    return Json::BigInteger{std::string(token)};
  }

  Json real(std::string_view token, size_t begin) const {
    double parsed = 0;
    const auto result = std::from_chars(token.data(), token.data() + token.size(), parsed);
    if (result.ec == std::errc()) return parsed;
    // Out of range: too small is zero (or the nearest denormal), too large has no value.
    const std::string copy(token);
    parsed = std::strtod(copy.c_str(), nullptr);
    if (parsed > 1 || parsed < -1) fail(begin, "a JSON number too large for a double");
    return parsed;
  }

  // The contents of the string that starts here: a view of the text, or of scratch_ where it has escapes.
  std::string_view string() {
    const size_t begin = ++at_;
    skip_plain();
    if (at_ < text_.size() && text_[at_] == '"') return text_.substr(begin, at_++ - begin);
    scratch_.assign(text_.substr(begin, at_ - begin));
    while (true) {
      if (at_ >= text_.size()) fail(begin - 1, "unterminated JSON string");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < 0x20) fail(at_, fmt::format("control character 0x{:02x} inside a JSON string", c));
      if (c == '"') break;
      escape();
      const size_t plain = at_;
      skip_plain();
      scratch_.append(text_.substr(plain, at_ - plain));
    }
    ++at_;
    return scratch_;
  }

  void skip_plain() {
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
  }

  void escape() {
    const size_t begin = at_++;
    if (at_ >= text_.size()) fail(begin, "unterminated JSON string");
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t i = kFrom.find(text_[at_]); i != std::string_view::npos) {
      scratch_ += kTo[i];
      ++at_;
    } else if (text_[at_] == 'u') {
      ++at_;
      append_utf8(code_point(begin));
    } else {
      fail(begin, "unknown escape in a JSON string");
    }
  }

  uint32_t code_point(size_t begin) {
    const uint32_t first = hex4(begin);
    if (first < 0xd800 || first > 0xdfff) return first;
    if (first > 0xdbff || !text_.substr(at_).starts_with("\\u")) fail(begin, "lone surrogate escape in a JSON string");
    at_ += 2;
    const uint32_t second = hex4(begin);
    if (second < 0xdc00 || second > 0xdfff) fail(begin, "lone surrogate escape in a JSON string");
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
  }

  uint32_t hex4(size_t begin) {
    uint32_t value = 0;
    const std::string_view token = text_.substr(at_, 4);
    const auto result = std::from_chars(token.data(), token.data() + token.size(), value, 16);
    if (token.size() < 4 || result.ptr != token.data() + 4) fail(begin, "bad \\u escape in a JSON string");
    at_ += 4;
    return value;
  }

  void append_utf8(uint32_t code) {
    const auto put = [&](uint32_t byte) { scratch_ += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | (code >> 6));
      put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | (code >> 12));
      put(0x80 | ((code >> 6) & 0x3f));
      put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3f));
      put(0x80 | ((code >> 6) & 0x3f));
      put(0x80 | (code & 0x3f));
    }
  }

  std::string_view text_;
  const JsonLimits& limits_;
  JsonEvents& events_;
  size_t at_ = 0;
  int64_t nodes_ = 0;
  bool fresh_ = false;  // right after an opening bracket
  bool after_comma_ = false;
  std::vector<bool> stack_;  // true: object
  std::string scratch_;
};

// Builds the tree; keeps the open objects and lists on a stack of its own.
class TreeBuilder final : public JsonEvents {
 public:
  void on_scalar(Json value) override { place(std::move(value)); }

  void on_key(std::string_view key) override {
    Frame& frame = *frames_.back();
    if (frame.has(key)) throw JsonRefusal{fmt::format("duplicate key {}", json_quote(key))};
    frame.members.emplace_back(std::string(key), Json());
    frame.remember_last();
  }

  void on_begin(bool is_object) override {
    frames_.push_back(std::make_unique<Frame>());
    frames_.back()->is_object = is_object;
  }

  void on_end(bool is_object) override {
    const std::unique_ptr<Frame> frame = std::move(frames_.back());
    frames_.pop_back();
    place(is_object ? Json(std::move(frame->members)) : Json(std::move(frame->elements)));
  }

  Json take() { return std::move(root_); }

 private:
  static constexpr size_t kSearchUpTo = 16;  // smaller objects are searched, larger ones get an index

  // Not movable: the index refers to `members`.
  struct Frame {
    struct Hash {
      const Json::Object* members;
      size_t operator()(size_t i) const { return std::hash<std::string_view>()((*members)[i].first); }
    };
    struct Equal {
      const Json::Object* members;
      bool operator()(size_t a, size_t b) const { return (*members)[a].first == (*members)[b].first; }
    };
    bool is_object = false;
    Json::Object members;
    Json::Array elements;
    std::unordered_set<size_t, Hash, Equal> index{0, Hash{&members}, Equal{&members}};

    bool has(std::string_view key) {
      if (members.size() <= kSearchUpTo) {
        return std::any_of(members.begin(), members.end(), [&](const auto& member) { return member.first == key; });
      }
      members.emplace_back(std::string(key), Json());  // so that the index can compare it
      const bool found = index.contains(members.size() - 1);
      members.pop_back();
      return found;
    }
    void remember_last() {
      if (members.size() <= kSearchUpTo) return;
      for (size_t i = index.size(); i < members.size(); ++i) index.insert(i);
    }
  };

  void place(Json value) {
    if (frames_.empty()) {
      root_ = std::move(value);
    } else if (frames_.back()->is_object) {
      frames_.back()->members.back().second = std::move(value);
    } else {
      frames_.back()->elements.push_back(std::move(value));
    }
  }

  std::vector<std::unique_ptr<Frame>> frames_;
  Json root_;
};

}  // namespace

JsonError json_error_at(std::string_view text, size_t offset, std::string message) {
  const std::string_view before = text.substr(0, offset);
  JsonError error;
  error.message = std::move(message);
  error.offset = offset;
  error.line = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const size_t newline = before.rfind('\n');
  error.column = static_cast<int>(newline == std::string_view::npos ? offset : offset - newline - 1) + 1;
  return error;
}

void parse_json_events(std::string_view text, const JsonLimits& limits, JsonEvents& events) {
  Parser(text, limits, events).run();
}

Json parse_json(std::string_view text, const JsonLimits& limits) {
  TreeBuilder builder;
  parse_json_events(text, limits, builder);
  return builder.take();
}

}  // namespace expertmesh::base
