// SPDX-License-Identifier: Apache-2.0
// yaml-cpp's event stream becomes a Node tree. Its own tree is not used: it keeps the first of two equal keys, drops
// documents after the first, shares aliased nodes without a bound, and loses what was quoted.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "config/node.h"

namespace expertmesh::config {
namespace {

using base::Code;
using base::make_error;

std::string_view line_of(std::string_view text, int line_from_0) {
  for (int i = 0; i < line_from_0; ++i) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

// The column (from 1) of a tab in a line's indentation; 0 where there is none or nothing follows.
int tab_in_indentation(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || line[first] == '#') return 0;
  const size_t tab = line.substr(0, first).find('\t');
  return tab == std::string_view::npos ? 0 : static_cast<int>(tab) + 1;
}

base::Error tab_error(const std::string& place) {
  return make_error(Code::kConfig, "config/yaml", "a tab in the indentation").at(place).hint("Indent with spaces.");
}

// Builds the tree and refuses, at the event that shows it, all that has two readings.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, const SourceName& source) : text_(text), source_(source) {}

  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ == 1) return;
    throw make_error(Code::kConfig, "config/yaml", "a second document (`---`) in one file")
        .at(second_document_place(mark))
        .hint("A configuration is one document: remove the line, or use two files.");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    Node node;
    node.place = place(mark);
    add(std::move(node), mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark, 1); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (value.size() > kMaxScalarBytes) {
      throw make_error(Code::kConfig, "config/yaml", "a text of {} bytes, at most {} are read", value.size(),
                       kMaxScalarBytes)
          .at(place(mark));
    }
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = value;
    node.is_quoted = tag == "!";
    node.is_override = source_.is_override;
    node.place = place(mark);
    if (node.is_quoted) refuse_open_quote(mark);
    const bool is_null =
        !node.is_quoted && (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL");
    if (is_null) node.kind = Node::Kind::kNull;
    add(std::move(node), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Node node;
    YAML::Mark mark;
    bool has_key = false;
    std::string key, key_place;
  };

  std::string place(const YAML::Mark& mark) const { return source_.at(mark.line + 1, mark.column + 1); }

  std::string second_document_place(const YAML::Mark& mark) const {
    for (int line = mark.line; line > 0; --line) {
      if (line_of(text_, line).starts_with("---")) return source_.at(line + 1, 1);
    }
    return place(mark);
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor == 0) return;
    throw make_error(Code::kConfig, "config/yaml", "an anchor (&name) or alias (*name)")
        .at(place(mark))
        .hint("They are not supported: write the value out, or put it in quotes.");
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    throw make_error(Code::kConfig, "config/yaml", "the tag {}", shorten(tag))
        .at(place(mark))
        .hint("Tags are not supported: write the plain value.");
  }

  // Where the text of a node begins; nothing for marks that lie outside of their line.
  std::optional<size_t> try_offset(const YAML::Mark& mark) {
    const std::string_view line = current_line(mark.line);
    if (mark.column < 0 || static_cast<size_t>(mark.column) >= line.size()) return std::nullopt;
    return static_cast<size_t>(line.data() - text_.data()) + static_cast<size_t>(mark.column);
  }

  // The byte after the closing quote of a quoted text that begins at `start`; nothing where it is never closed.
  std::optional<size_t> try_end_of_quoted(size_t start) const {
    const char quote = text_[start];
    for (size_t i = start + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 >= text_.size() || text_[i + 1] != quote) return i + 1;
        ++i;  // two single quotes stand for one
      }
    }
    return std::nullopt;
  }

  bool is_quote_at(size_t offset) const { return text_[offset] == '"' || text_[offset] == '\''; }

  // The library takes the end of the file for a closing quote, and so swallows the rest of the file.
  void refuse_open_quote(const YAML::Mark& mark) {
    const auto start = try_offset(mark);
    if (!start || !is_quote_at(*start) || try_end_of_quoted(*start)) return;
    throw make_error(Code::kConfig, "config/yaml", "a quoted text that is not closed")
        .at(place(mark))
        .hint("Add the closing quote.");
  }

  // The library takes a last line without a colon for a key with a null value.
  void refuse_missing_colon(const YAML::Mark& mark, const Node& key) {
    const auto start = try_offset(mark);
    if (!start) return;
    const bool is_quoted = key.is_quoted && is_quote_at(*start);
    const size_t end = is_quoted ? try_end_of_quoted(*start).value_or(text_.size()) : *start + key.text.size();
    const size_t next = text_.find_first_not_of(" \t", std::min(end, text_.size()));
    if (next != std::string_view::npos && text_[next] == ':') return;
    for (const Level& level : levels_) refuse_open_bracket(level.mark);
    throw make_error(Code::kConfig, "config/yaml", "no colon after {}", shorten(key.text))
        .at(key.place)
        .hint("Write `key: value`.");
  }

  void count_node(const YAML::Mark& mark) {
    if (++num_nodes_ > kMaxNodes) {
      throw make_error(Code::kConfig, "config/yaml", "more than {} values in one file", kMaxNodes).at(place(mark));
    }
    if (source_.has_lines && mark.line != last_line_) {
      last_line_ = mark.line;
      const int tab = tab_in_indentation(current_line(mark.line));
      if (tab != 0) throw tab_error(source_.at(mark.line + 1, tab));
    }
  }

  // Marks come in order: walks on from the last line instead of counting from the start again.
  std::string_view current_line(int line) {
    if (line < walked_line_) return line_of(text_, line);
    while (walked_line_ < line) {
      const size_t end = text_.find('\n', walked_offset_);
      if (end == std::string_view::npos) break;
      walked_offset_ = end + 1;
      ++walked_line_;
    }
    const std::string_view rest = text_.substr(walked_offset_);
    return rest.substr(0, rest.find('\n'));
  }

  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    count_node(mark);
    if (static_cast<int>(levels_.size()) >= kMaxDepth) {
      throw make_error(Code::kConfig, "config/yaml", "lists and mappings nested deeper than {}", kMaxDepth)
          .at(place(mark))
          .hint("A configuration needs three levels.");
    }
    if (!levels_.empty() && levels_.back().node.is_map() && !levels_.back().has_key) refuse_complex_key(mark);
    Level level;
    level.node.kind = kind;
    level.node.place = place(mark);
    level.mark = mark;
    levels_.push_back(std::move(level));
  }

  void close() {
    Node node = std::move(levels_.back().node);
    levels_.pop_back();
    attach(std::move(node));
  }

  // An open bracket that is never closed looks like the start of a key to the library, or its last item like one.
  bool is_never_closed(size_t start) const {
    if (text_[start] != '[' && text_[start] != '{') return false;
    int depth = 0;
    for (const char c : text_.substr(start)) {
      if (c == '[' || c == '{') ++depth;
      if ((c == ']' || c == '}') && --depth == 0) return false;
    }
    return true;
  }

  void refuse_open_bracket(const YAML::Mark& mark) {
    const auto start = try_offset(mark);
    if (!start || !is_never_closed(*start)) return;
    throw make_error(Code::kConfig, "config/yaml", "a bracket that is not closed").at(place(mark)).hint("Close it.");
  }

  void refuse_complex_key(const YAML::Mark& mark) {
    refuse_open_bracket(mark);
    throw make_error(Code::kConfig, "config/yaml", "a key that is no plain text")
        .at(place(mark))
        .hint("Write `key: value`; put text with braces or brackets in quotes.");
  }

  void add(Node node, const YAML::Mark& mark) {
    count_node(mark);
    if (levels_.empty() || !levels_.back().node.is_map() || levels_.back().has_key) {
      attach(std::move(node));
      return;
    }
    if (!node.is_scalar()) refuse_complex_key(mark);
    refuse_missing_colon(mark, node);
    take_key(node);
  }

  void take_key(const Node& node) {
    Level& level = levels_.back();
    if (node.text == "<<") {
      throw make_error(Code::kConfig, "config/yaml", "a merge key (<<)")
          .at(node.place)
          .hint("Merging is not supported: write the keys out.");
    }
    for (const Node::Entry& entry : level.node.entries) {
      if (entry.key != node.text) continue;
      throw make_error(Code::kConfig, "config/" + shorten(node.text), "the key {} is given twice, first at {}",
                       shorten(node.text), entry.place)
          .at(node.place)
          .hint("Keep one of them.");
    }
    level.has_key = true;
    level.key = node.text;
    level.key_place = node.place;
  }

  void attach(Node node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (!level.node.is_map()) {
      level.node.items.push_back(std::move(node));
      return;
    }
    level.node.entries.push_back({std::move(level.key), std::move(level.key_place), std::move(node)});
    level.has_key = false;
  }

  std::string_view text_;
  const SourceName& source_;
  Node root_;
  std::vector<Level> levels_;
  int num_documents_ = 0;
  int num_nodes_ = 0;
  int last_line_ = -1;
  int walked_line_ = 0;
  size_t walked_offset_ = 0;
};

// Our words for what the library noticed.
std::pair<std::string, std::string> explain(const std::string& reason) {
  namespace msg = YAML::ErrorMsg;
  if (reason == msg::END_OF_SEQ_FLOW || reason == msg::END_OF_SEQ) return {"a list that is not closed", "Add `]`."};
  if (reason == msg::END_OF_MAP_FLOW) return {"a mapping that is not closed", "Add `}`."};
  if (reason == msg::FLOW_END) return {"a closing bracket without an opening one", ""};
  if (reason == msg::EOF_IN_SCALAR || reason == msg::DOC_IN_SCALAR) return {"a quoted text that is not closed", ""};
  if (reason == msg::MAP_KEY || reason == msg::MAP_VALUE || reason == msg::END_OF_MAP) {
    return {"a line that is no `key: value` at this place", "Check the indentation; put text with `: ` in quotes."};
  }
  if (reason == msg::INVALID_ESCAPE || reason.starts_with(msg::INVALID_ESCAPE) ||
      reason.starts_with(msg::INVALID_UNICODE)) {
    return {"an unknown escape (backslash) in quoted text", "Use single quotes, or double the backslash."};
  }
  if (reason == msg::BLOCK_ENTRY) return {"a list entry (`- `) at a place where none can stand", ""};
  return {"this is not YAML", "Put text with special characters in quotes."};
}

base::Error syntax_error(const YAML::Exception& error, std::string_view text, const SourceName& source) {
  const int line = error.mark.is_null() ? 0 : error.mark.line;
  if (source.has_lines) {
    for (int i = 0; i <= line; ++i) {
      const int tab = tab_in_indentation(line_of(text, i));
      if (tab != 0) return tab_error(source.at(i + 1, tab));
    }
  }
  auto [message, hint] = explain(error.msg);
  return make_error(Code::kConfig, "config/yaml", "{}", message)
      .at(source.at(line + 1, error.mark.is_null() ? 1 : error.mark.column + 1))
      .hint(std::move(hint));
}

// The library skips a line that begins with %, wherever it stands.
void refuse_directives(std::string_view text, const SourceName& source) {
  for (int line = 1; !text.empty(); ++line) {
    if (text[0] == '%') {
      throw make_error(Code::kConfig, "config/yaml", "a directive (a line that begins with %)")
          .at(source.at(line, 1))
          .hint("Remove the line, or indent it where it belongs to a text.");
    }
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

Node parse_yaml(std::string_view text, const SourceName& source) {
  const std::string clean = clean_text(text, source);
  refuse_directives(clean, source);
  TreeBuilder builder(clean, source);
  try {
    std::istringstream stream(clean);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw syntax_error(error, clean, source);
  }
  return builder.take_root();
}

}  // namespace expertmesh::config
