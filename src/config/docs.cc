// SPDX-License-Identifier: Apache-2.0
#include "config/docs.h"

#include <fmt/format.h>

#include "config/schema.h"
#include "config/yaml_text.h"

namespace expertmesh::config {
namespace {

constexpr std::string_view kIntro =
    R"(<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made from src/config by tools/config_docs.cc. Do not edit: a test compares it. -->

# Configuration

`expertmesh sft config.yaml key=value ...` reads one YAML file (or the same in JSON) with a flat top level and a few
sections. Overrides on the command line win; dots lead into sections (`dist_config.ep_size=4`), and values are YAML
(`trainable_modules="[a, b]"`). Values are strict: an unknown key, a wrong type or a value out of range ends the command
with exit code 10 before anything is loaded, and the message names the place, the value and what would be valid. All
faults of a file are shown at once.

* `true`, `false`, `yes`, `no`, `on`, `off` are booleans; `1e-5` is a number; integers are decimal without a leading zero.
* A section is null, a mapping with a `name`, or a JSON text that begins with `{`. In sections quoted numbers and
  booleans count as what they look like.
* One document; no anchors, aliases, tags, merge keys or duplicate keys; indentation with spaces; UTF-8.
* `output_dir/config.resolved.yaml` holds every key with the value that was used and can be run again.
* Keys that are known but not built yet are refused by name, after everything else was checked.

)";

// The default as it is printed; for keys of one name, with that name.
std::string default_text(const Section& section, const Field& field) {
  if (field.is_ignored) return "-";
  if (field.key == "name" && section.is_null) return "-";
  Config config;
  // weight_decay and momentum have other defaults with other optimizers; the doc line says so.
  return yaml_value(field.write(config));
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

void add_table(std::string& page, const Section& section) {
  page += "| key | type | default | unit | meaning |\n|---|---|---|---|---|\n";
  for (const Field& field : section.fields) {
    const std::string only = field.only_for.empty() ? "" : fmt::format(" (with name {})", field.only_for);
    page += fmt::format("| `{}` | {} | `{}` | {} | {}{} |\n", field.key, cell(field.type),
                        cell(default_text(section, field)), field.unit, cell(field.doc), only);
  }
  page += '\n';
}

void add_keys(std::string& list, const Section& section) {
  for (const Field& field : section.fields) {
    const std::string only = field.only_for.empty() ? "" : fmt::format(" [{}]", field.only_for);
    list += fmt::format("{}{} {} = {}\n", key_path(section, field), only, field.type, default_text(section, field));
  }
}

}  // namespace

std::string config_page_markdown() {
  std::string page(kIntro);
  for (const Section& group : schema().groups) {
    page += fmt::format("## {}\n\n{}\n\n", group.title, group.doc);
    add_table(page, group);
  }
  for (const Section& section : schema().sections) {
    page += fmt::format("## {}\n\n{}\n\n", section.title, section.doc);
    if (!section.fields.empty()) add_table(page, section);
  }
  while (page.ends_with("\n\n")) page.pop_back();
  return page;
}

std::string config_key_list() {
  std::string list;
  for (const Section& group : schema().groups) add_keys(list, group);
  for (const Section& section : schema().sections) {
    list += fmt::format("{} section\n", section.key);
    add_keys(list, section);
  }
  return list;
}

}  // namespace expertmesh::config
