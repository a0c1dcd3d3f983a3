// SPDX-License-Identifier: Apache-2.0
#include "config/overrides.h"

#include <fmt/format.h>

#include "base/error.h"

namespace expertmesh::config {
namespace {

void merge(Node& target, Node value) {
  if (!target.is_map() || !value.is_map()) {
    target = std::move(value);
    return;
  }
  for (Node::Entry& entry : value.entries) {
    if (Node* existing = target.find(entry.key)) {
      merge(*existing, std::move(entry.value));
    } else {
      target.entries.push_back(std::move(entry));
    }
  }
}

// The entry of one part of the path; its place becomes the override's.
Node& descend(Node& node, const std::string& key, const std::string& place) {
  expand_json_text(node);
  if (!node.is_map()) {
    node = {};
    node.kind = Node::Kind::kMap;
    node.place = place;
  }
  for (Node::Entry& entry : node.entries) {
    if (entry.key == key) return entry.value;
  }
  Node null;
  null.place = place;
  node.entries.push_back({key, place, std::move(null)});
  return node.entries.back().value;
}

void mark_last(Node& parent, const std::string& key, const std::string& place) {
  for (Node::Entry& entry : parent.entries) {
    if (entry.key == key) entry.place = place;
  }
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

void apply(Node& root, std::string_view text, const SourceName& source, Problems& problems) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    problems.add("override", source.name, "expected key=value", "For example learning_rate=1e-5.");
    return;
  }
  const std::vector<std::string> path = split_path(text.substr(0, equals));
  for (const std::string& part : path) {
    if (part.empty() || path.size() > 4) {
      problems.add("override", source.name, "a key is a name, or section.name", "For example dist_config.ep_size=4.");
      return;
    }
  }
  Node value = parse_yaml(text.substr(equals + 1), source);
  if (value.place.empty()) value.place = source.name;
  Node* parent = &root;
  for (size_t i = 0; i + 1 < path.size(); ++i) parent = &descend(*parent, path[i], source.name);
  Node& target = descend(*parent, path.back(), source.name);
  mark_last(*parent, path.back(), source.name);
  expand_json_text(target);
  merge(target, std::move(value));
}

}  // namespace

void expand_json_text(Node& section) {
  if (!section.is_scalar()) return;
  const size_t first = section.text.find_first_not_of(" \t\n");
  if (first == std::string::npos || section.text[first] != '{') return;
  const std::string place = section.place;
  section = parse_json_text(section.text, {.name = place, .has_lines = false});
  section.place = place;
}

void apply_overrides(Node& root, const std::vector<std::string>& overrides, Problems& problems) {
  for (size_t i = 0; i < overrides.size(); ++i) {
    apply(root, overrides[i], {fmt::format("override #{} {}", i + 1, shorten(overrides[i], 100)), false, true},
          problems);
  }
}

}  // namespace expertmesh::config
