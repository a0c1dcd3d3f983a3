// SPDX-License-Identifier: Apache-2.0
#include "config/node.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace expertmesh::config {
namespace {

// Line and column (from 1) of a byte.
std::string place_of(std::string_view text, size_t offset, const SourceName& source) {
  const std::string_view before = text.substr(0, offset);
  const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return source.at(line, static_cast<int>(offset - line_start) + 1);
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

Node* Node::find(std::string_view key) {
  for (Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

std::string shorten(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= limit) {
      // Never cut inside a UTF-8 sequence.
      if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) return out + "...";
    }
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a mapping";
    case Node::Kind::kScalar:
      break;
  }
  return node.is_quoted ? fmt::format("\"{}\" (text)", shorten(node.text)) : shorten(node.text);
}

std::string SourceName::at(int line, int column) const {
  return has_lines ? fmt::format("{}:{}:{}", name, line, column) : name;
}

std::string clean_text(std::string_view text, const SourceName& source) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const auto bad = base::find_invalid_utf8(text)) {
    throw base::make_error(base::Code::kConfig, "config/yaml", "byte 0x{:02X} is not UTF-8",
                           static_cast<unsigned char>(text[*bad]))
        .at(place_of(text, *bad, source))
        .hint("Save the file as UTF-8.");
  }
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\r') {
      if (i + 1 >= text.size() || text[i + 1] != '\n') out += '\n';
      continue;
    }
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      throw base::make_error(base::Code::kConfig, "config/yaml", "{} (byte 0x{:02X}) in a text file",
                             byte == 0 ? "NUL character" : "control character", byte)
          .at(place_of(text, i, source))
          .hint("Remove it.");
    }
    out += text[i];
  }
  return out;
}

}  // namespace expertmesh::config
