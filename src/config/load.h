// SPDX-License-Identifier: Apache-2.0
// From a file and overrides to a Config that has passed every check that needs neither a model nor a mesh.
// Errors: kConfig; all unknown keys and bad values of a file in one message, each with file:line:column.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace expertmesh::config {

// What the configuration is for; decides which keys must be there and what is built.
enum class Command { kSft, kDpo, kRm, kScore, kGenerate, kOther };

// Where each key that was given stands: "config.yaml:14:12", or "override #2 dist_config.ep_size=4".
class Positions {
 public:
  // Of a key path such as "dist_config.ep_size"; for one that was not given, of its section, else the file alone.
  std::string of(std::string_view key_path) const;
  bool has(std::string_view key_path) const { return places_.contains(key_path); }
  void set(std::string key_path, std::string place) { places_.insert_or_assign(std::move(key_path), std::move(place)); }
  void set_file(std::string file) { file_ = std::move(file); }

 private:
  std::string file_;
  std::map<std::string, std::string, std::less<>> places_;
};

struct Loaded {
  Config config;
  Positions positions;                // for later checks that name a key
  std::vector<std::string> warnings;  // for the caller to log once
};

// Reads FILE (.yaml, .yml or .json; "" for overrides alone) and then `key=value` overrides with dots, which win.
Loaded load_config(const std::string& file, const std::vector<std::string>& overrides, Command command);

// The same from text; `name` stands for the file in messages and its ending chooses the format.
Loaded parse_config(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                    Command command);

}  // namespace expertmesh::config
