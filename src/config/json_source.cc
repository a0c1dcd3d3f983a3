// SPDX-License-Identifier: Apache-2.0
// JSON files and JSON texts of sections. The strict parser of base decides what is valid; a second walk over the same,
// now known to be valid, text finds where each value stands and how its numbers were written.
#include <fmt/format.h>

#include <cctype>

#include "base/error.h"
#include "base/json.h"
#include "config/node.h"

namespace expertmesh::config {
namespace {

class Walker {
 public:
  Walker(std::string_view text, const SourceName& source) : text_(text), source_(source) {}

  Node walk(const base::Json& json) {
    skip_space();
    Node node;
    node.place = place();
    if (const auto* object = json.try_object()) {
      node.kind = Node::Kind::kMap;
      step();  // {
      for (const auto& [key, value] : *object) {
        skip_space();
        if (text_[offset_] == ',') step();
        skip_space();
        Node::Entry entry{key, place(), {}};
        skip_string();
        skip_space();
        step();  // :
        entry.value = walk(value);
        node.entries.push_back(std::move(entry));
      }
      skip_space();
      step();  // }
    } else if (const auto* array = json.try_array()) {
      node.kind = Node::Kind::kList;
      step();  // [
      for (const base::Json& item : *array) {
        skip_space();
        if (text_[offset_] == ',') step();
        node.items.push_back(walk(item));
      }
      skip_space();
      step();  // ]
    } else if (const std::string* value = json.try_string()) {
      node.kind = Node::Kind::kScalar;
      node.is_quoted = true;
      node.text = *value;
      skip_string();
    } else {
      const size_t start = offset_;
      while (offset_ < text_.size() && is_word(text_[offset_])) step();
      node.text = text_.substr(start, offset_ - start);
      node.kind = json.is_null() ? Node::Kind::kNull : Node::Kind::kScalar;
    }
    return node;
  }

 private:
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  }
  std::string place() const { return source_.at(line_, column_); }
  void step() {
    if (offset_ >= text_.size()) return;
    if (text_[offset_] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
    ++offset_;
  }
  void skip_space() {
    while (offset_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[offset_])) != 0) step();
  }
  void skip_string() {
    step();
    while (offset_ < text_.size() && text_[offset_] != '"') {
      if (text_[offset_] == '\\') step();
      step();
    }
    step();
  }

  std::string_view text_;
  const SourceName& source_;
  size_t offset_ = 0;
  int line_ = 1, column_ = 1;
};

}  // namespace

Node parse_json_text(std::string_view text, const SourceName& source) {
  const std::string clean = clean_text(text, source);
  try {
    const base::Json json = base::parse_json(clean, {.max_depth = kMaxDepth, .max_nodes = kMaxNodes});
    return Walker(clean, source).walk(json);
  } catch (const base::JsonError& error) {
    throw base::make_error(base::Code::kConfig, "config/json", "this is not JSON: {}", error.message)
        .at(source.at(error.line, error.column));
  }
}

}  // namespace expertmesh::config
