// SPDX-License-Identifier: Apache-2.0
#include "config/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/scalar.h"
#include "config/schema.h"
#include "config/yaml_text.h"

namespace expertmesh::config {
namespace {

bool is_printed(const Field& field, const Config& config) {
  return !field.is_ignored && (!field.applies || field.applies(config));
}

base::Json section_json(const Section& section, const Config& config) {
  if (section.is_null && section.is_null(config)) return nullptr;
  base::Json::Object object;
  for (const Field& field : section.fields) {
    if (is_printed(field, config)) object.emplace_back(field.key, field.write(config));
  }
  return object;
}

std::string body(const Config& config) {
  std::string out;
  for (const Section& group : schema().groups) {
    out += fmt::format("\n# {}\n", group.title);
    for (const Field& field : group.fields) out += fmt::format("{}: {}\n", field.key, yaml_value(field.write(config)));
  }
  out += '\n';
  for (const Section& section : schema().sections) {
    const base::Json json = section_json(section, config);
    if (json.is_null()) {
      out += fmt::format("{}: null\n", section.key);
      continue;
    }
    out += fmt::format("{}:\n", section.key);
    for (const auto& [key, value] : *json.try_object()) out += fmt::format("  {}: {}\n", key, yaml_value(value));
  }
  return out;
}

}  // namespace

std::string yaml_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string yaml_text(std::string_view text) {
  const bool is_simple = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '/' ||
           c == '.' || c == '-';
  });
  const bool starts_well = !text.empty() && text[0] != '-' && text[0] != '.';
  return is_simple && starts_well && !looks_like_other_type(text) ? std::string(text) : yaml_quote(text);
}

std::string yaml_number(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string yaml_value(const base::Json& value) {
  if (value.is_null()) return "null";
  if (const auto flag = value.try_bool()) return *flag ? "true" : "false";
  if (const auto integer = value.try_int64(); integer && value.is_integer()) return fmt::format("{}", *integer);
  if (const auto number = value.try_double()) return yaml_number(*number);
  if (const std::string* text = value.try_string()) {
    // A name list of kernels reads better without quotes: commas are plain outside of lists.
    return yaml_text(*text);
  }
  std::string out = "[";
  if (const auto* array = value.try_array()) {
    for (const base::Json& item : *array) {
      if (out.size() > 1) out += ", ";
      out += yaml_value(item);
    }
  }
  return out + "]";
}

std::string print_yaml(const Config& config) {
  return "# Resolved configuration: every key, defaults too. It can be run again.\n" + body(config);
}

base::Json to_json(const Config& config) {
  base::Json::Object object;
  for (const Section& group : schema().groups) {
    for (const Field& field : group.fields) object.emplace_back(field.key, field.write(config));
  }
  for (const Section& section : schema().sections) object.emplace_back(section.key, section_json(section, config));
  return object;
}

std::optional<base::Json> try_value(const Config& config, std::string_view key_path) {
  base::Json json = to_json(config);
  const size_t dot = key_path.find('.');
  const base::Json* found = json.find(key_path.substr(0, dot));
  if (found != nullptr && dot != std::string_view::npos) found = found->find(key_path.substr(dot + 1));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

uint64_t config_hash(const Config& config) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : body(config)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace expertmesh::config
