// SPDX-License-Identifier: Apache-2.0
// The schema as a table: every key with its section, type, limits, unit, meaning and member of Config. Reading, unknown
// keys, printing, hashing, the docs page and the frozen key list all walk this one table.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "config/node.h"
#include "config/scalar.h"

namespace expertmesh::config {

struct ReadContext {
  Quotes quotes = Quotes::kText;
};

struct Field {
  std::string key;
  std::string type;  // "integer of at least 1", "one of eager, sdpa, flash_attention_2"
  std::string unit;  // "tokens"; empty where there is none
  std::string doc;   // a full sentence
  bool is_nullable = false;
  bool is_ignored = false;  // accepted with a warning, never printed
  std::string only_for;     // the section's names that have this key, "a, b"; empty: all
  std::function<void(const Node&, const ReadContext&, Config&)> read;  // throws ValueError
  std::function<base::Json(const Config&)> write;
  std::function<bool(const Config&)> applies;  // whether this key exists, given the section's name; empty: always
};

// A key that is known and never accepted, with what to do instead (a full sentence).
struct RefusedKey {
  std::string_view key;
  std::string_view instead;
};

struct Section {
  std::string key;    // "dist_config"; empty for the top level
  std::string title;  // of the docs page
  std::string doc;
  std::vector<Field> fields;                   // `name` first, where the section has one
  std::function<bool(const Config&)> is_null;  // prints as null; empty: never
  std::function<void(Config&)> set_null;       // what a null section means; empty: null is an error
  std::function<void(Config&)> start;          // before the fields of a section that is there are read
  std::vector<RefusedKey> refused;
  std::string_view never;  // not empty: any value but null is refused, with this sentence

  const Field* find(std::string_view field_key) const;
};

// The flat top level comes in groups (one Section with an empty key each), then the sections of the file.
struct Schema {
  std::vector<Section> groups;
  std::vector<Section> sections;

  const Field* find_top(std::string_view key) const;
  const Section* find_section(std::string_view key) const;
};

const Schema& schema();

// "dist_config.ep_size", or the key alone at the top level.
std::string key_path(const Section& section, const Field& field);

}  // namespace expertmesh::config
