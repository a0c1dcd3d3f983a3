// SPDX-License-Identifier: Apache-2.0
// A parsed file before it has a meaning: scalars as written, lists and mappings, each with its place. Duplicate keys,
// anchors, tags and several documents were refused on the way here, so that what is left has one reading.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace expertmesh::config {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  std::string text;          // of a scalar, as it was written (without quotes)
  bool is_quoted = false;    // a quoted scalar is text, whatever it looks like
  bool is_override = false;  // from the command line, where the shell takes quotes away
  std::string place;         // "config.yaml:6:3"
  std::vector<Node> items;
  std::vector<Entry> entries;  // in the order of the file

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_map() const { return kind == Kind::kMap; }

  // The value of a mapping's key, or nullptr.
  Node* find(std::string_view key);
  const Node* find(std::string_view key) const;
};

struct Node::Entry {
  std::string key;
  std::string place;  // of the key
  Node value;
};

// What a message shows: `12.5`, `"2" (text)`, `a list`, `a mapping`, `null`; long scalars are cut.
std::string describe(const Node& node);

// Text for a message: control characters escaped, at most `limit` bytes.
std::string shorten(std::string_view text, size_t limit = 60);

// Limits of a configuration file.
inline constexpr size_t kMaxFileBytes = size_t{512} << 10;
inline constexpr size_t kMaxScalarBytes = size_t{64} << 10;
inline constexpr int kMaxDepth = 16;
inline constexpr int kMaxNodes = 10000;

// How the places of a text are spelled: a file has line and column, an override is a place of its own.
struct SourceName {
  std::string name;
  bool has_lines = true;
  bool is_override = false;
  std::string at(int line, int column) const;  // both from 1
};

// One YAML document, or one JSON object. Errors: kConfig.
Node parse_yaml(std::string_view text, const SourceName& source);
Node parse_json_text(std::string_view text, const SourceName& source);

// Refuses NUL and other control characters and invalid UTF-8, drops a byte order mark, turns CRLF into LF.
std::string clean_text(std::string_view text, const SourceName& source);

}  // namespace expertmesh::config
