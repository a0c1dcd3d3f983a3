// SPDX-License-Identifier: Apache-2.0
#include "config/reader.h"

#include <fmt/format.h>

#include "config/overrides.h"
#include "config/schema.h"
#include "config/suggest.h"

namespace expertmesh::config {
namespace {

// "an integer of at least 1", "a number", "a list of text"; types that need none stay as they are.
std::string with_article(const std::string& type) {
  if (type.starts_with("integer")) return "an " + type;
  return type.starts_with("number") || type.starts_with("list") ? "a " + type : type;
}

class TreeReader {
 public:
  TreeReader(Loaded& loaded, Problems& problems) : loaded_(loaded), problems_(problems) {}

  void read(Node& root) {
    for (Node::Entry& entry : root.entries) {
      if (const Field* field = schema().find_top(entry.key)) {
        read_field({}, *field, entry);
      } else if (const Section* section = schema().find_section(entry.key)) {
        read_section(*section, entry);
      } else {
        report_unknown("", entry);
      }
    }
  }

 private:
  // Faults of a value are shown at the value, where it is one word; lists, mappings and nothing at their key.
  static const std::string& place_of(const Node::Entry& entry) {
    return entry.value.is_scalar() ? entry.value.place : entry.place;
  }

  void read_section(const Section& section, Node::Entry& entry) {
    Node& node = entry.value;
    expand_json_text(node);
    loaded_.positions.set(section.key, entry.place);
    if (node.is_null()) {
      section.set_null(loaded_.config);
      return;
    }
    if (!section.never.empty()) {
      problems_.add(section.key, entry.place, fmt::format("{} is {}, expected null", section.key, describe(node)),
                    std::string(section.never));
      return;
    }
    const Field& name = section.fields.front();
    if (!node.is_map()) {
      problems_.add(section.key, place_of(entry),
                    fmt::format("{} is {}, expected a mapping with name: {}", section.key, describe(node), name.type),
                    "Write the name and the other keys indented under it.");
      return;
    }
    if (section.start) section.start(loaded_.config);
    const bool has_name = read_name(section, name, entry);
    for (const Node::Entry& inner : node.entries) {
      if (inner.key != name.key) read_inner(section, inner, has_name);
    }
  }

  bool read_name(const Section& section, const Field& name, const Node::Entry& entry) {
    for (const Node::Entry& inner : entry.value.entries) {
      if (inner.key == name.key && !inner.value.is_null()) return read_field(&section, name, inner);
    }
    problems_.add(section.key, entry.place, fmt::format("{} has no name, expected name: {}", section.key, name.type));
    return false;
  }

  // Without a valid name it is not known which keys exist: then only keys that no name has are reported.
  void read_inner(const Section& section, const Node::Entry& entry, bool has_name) {
    const Field* field = section.find(entry.key);
    if (field == nullptr) {
      report_unknown(section.key, entry);
      return;
    }
    if (!has_name) return;
    if (field->applies && !field->applies(loaded_.config)) {
      const base::Json name = section.fields.front().write(loaded_.config);
      problems_.add(entry.key, entry.place,
                    fmt::format("{}.{} does not exist with name: {}", section.key, entry.key, *name.try_string()),
                    fmt::format("It needs name: {}.", field->only_for));
      return;
    }
    read_field(&section, *field, entry);
  }

  // False where the value was faulty.
  bool read_field(const Section* section, const Field& field, const Node::Entry& entry) {
    const std::string path = section == nullptr ? field.key : section->key + "." + field.key;
    const std::string& topic = section != nullptr && field.key == "name" ? section->key : field.key;
    loaded_.positions.set(path, place_of(entry));
    if (entry.value.is_null() && !field.is_nullable) {
      problems_.add(topic, place_of(entry), fmt::format("{} is null, expected {}", path, with_article(field.type)),
                    "Leave the key out for its default.");
      return false;
    }
    try {
      field.read(entry.value, {section == nullptr ? Quotes::kText : Quotes::kNormalise}, loaded_.config);
    } catch (const ValueError& error) {
      problems_.add(topic, place_of(entry), fmt::format("{} {}", path, error.message), error.hint);
      return false;
    }
    if (field.is_ignored && !entry.value.is_null()) {
      loaded_.warnings.push_back(
          fmt::format("{}: {} has no effect: {} is used", place_of(entry), path, "learning_rate"));
    }
    return true;
  }

  void report_unknown(const std::string& section, const Node::Entry& entry) {
    const KeyAdvice advice = advise_unknown_key(section, entry.key);
    problems_.add(shorten(entry.key, 40), entry.place, advice.message, advice.hint);
  }

  Loaded& loaded_;
  Problems& problems_;
};

}  // namespace

void read_tree(Node& root, Loaded& loaded, Problems& problems) { TreeReader(loaded, problems).read(root); }

}  // namespace expertmesh::config
