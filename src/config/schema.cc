// SPDX-License-Identifier: Apache-2.0
#include "config/schema.h"

#include "config/fields.h"

namespace expertmesh::config {

const Field* Section::find(std::string_view field_key) const {
  for (const Field& field : fields) {
    if (field.key == field_key) return &field;
  }
  return nullptr;
}

const Field* Schema::find_top(std::string_view key) const {
  for (const Section& group : groups) {
    if (const Field* field = group.find(key)) return field;
  }
  return nullptr;
}

const Section* Schema::find_section(std::string_view key) const {
  for (const Section& section : sections) {
    if (section.key == key) return &section;
  }
  return nullptr;
}

const Schema& schema() {
  static const Schema kSchema{top_level_groups(), file_sections()};
  return kSchema;
}

std::string key_path(const Section& section, const Field& field) {
  return section.key.empty() ? field.key : section.key + "." + field.key;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t first = part.find_first_not_of(" \t\n");
    if (first == std::string_view::npos) continue;
    part = part.substr(first, part.find_last_not_of(" \t\n") - first + 1);
    parts.emplace_back(part);
  }
  return parts;
}

std::vector<std::string> read_text_list(const Node& node, bool takes_comma_text) {
  if (takes_comma_text && node.is_scalar()) return split_commas(read_text(node, node.is_override));
  if (node.kind != Node::Kind::kList) {
    throw ValueError{fmt::format("is {}, expected a list of text", describe(node)), "Write [a, b]."};
  }
  std::vector<std::string> list;
  for (const Node& item : node.items) {
    std::string text = read_text(item, item.is_override);
    if (text.empty()) throw ValueError{"holds an empty text", "Remove it from the list."};
    list.push_back(std::move(text));
  }
  return list;
}

base::Json write_text_list(const std::vector<std::string>& list) {
  base::Json::Array array;
  for (const std::string& text : list) array.emplace_back(text);
  return array;
}

}  // namespace expertmesh::config
