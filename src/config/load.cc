// SPDX-License-Identifier: Apache-2.0
#include "config/load.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/file.h"
#include "config/checks.h"
#include "config/node.h"
#include "config/overrides.h"
#include "config/problems.h"
#include "config/reader.h"

namespace expertmesh::config {
namespace {

using base::Code;
using base::make_error;

std::string lower_ending(const std::string& name) {
  const size_t dot = name.rfind('.');
  std::string ending = dot == std::string::npos ? "" : name.substr(dot);
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

std::string read_file(const std::string& file) {
  const auto fs = base::make_posix_file_system(Code::kConfig);
  const base::FileStat stat = fs->stat(file);
  if (!stat.exists) {
    throw make_error(Code::kConfig, "config/file", "there is no such file").at(file).hint("Check the path.");
  }
  if (!stat.is_regular) {
    throw make_error(Code::kConfig, "config/file", "this is {}, not a file",
                     stat.is_directory ? "a directory" : "a device or pipe")
        .at(file)
        .hint("Give a .yaml or .json file.");
  }
  if (stat.size > kMaxFileBytes) {
    throw make_error(Code::kConfig, "config/file", "{} bytes, a configuration has at most {}", stat.size, kMaxFileBytes)
        .at(file);
  }
  return fs->read_all(file);
}

Node parse_text(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFileBytes) {
    throw make_error(Code::kConfig, "config/file", "{} bytes, a configuration has at most {}", text.size(),
                     kMaxFileBytes)
        .at(name);
  }
  const std::string ending = lower_ending(name);
  if (ending == ".json") return parse_json_text(text, {.name = name});
  if (ending == ".yaml" || ending == ".yml") return parse_yaml(text, {.name = name});
  throw make_error(Code::kConfig, "config/file", "the name ends in none of .yaml, .yml, .json")
      .at(name)
      .hint("Rename the file.");
}

void check_root(const Node& root, const std::string& name) {
  if (root.is_map()) return;
  if (root.is_null()) {
    throw make_error(Code::kConfig, "config/file", "the file is empty")
        .at(name)
        .hint("Give at least model and train_dataset, as key: value lines.");
  }
  throw make_error(Code::kConfig, "config/file", "the file is {}, expected a mapping of `key: value` lines",
                   describe(root))
      .at(root.place);
}

Loaded load_tree(Node root, const std::string& name, const std::vector<std::string>& overrides, Command command) {
  Loaded loaded;
  Problems problems;
  loaded.positions.set_file(name.empty() ? "command line" : name);
  apply_overrides(root, overrides, problems);
  read_tree(root, loaded, problems);
  check_used_keys(root, command, problems);
  check_required_keys(loaded, command, problems);
  // Combinations of values that did not read would be judged by their defaults.
  problems.throw_if_any();
  check_combinations(loaded, problems);
  problems.throw_if_any();
  for (std::string& warning : combination_warnings(loaded)) loaded.warnings.push_back(std::move(warning));
  return loaded;
}

}  // namespace

std::string Positions::of(std::string_view key_path) const {
  if (const auto found = places_.find(key_path); found != places_.end()) return found->second;
  const size_t dot = key_path.rfind('.');
  return dot == std::string_view::npos ? file_ : of(key_path.substr(0, dot));
}

Loaded load_config(const std::string& file, const std::vector<std::string>& overrides, Command command) {
  if (!file.empty()) return parse_config(read_file(file), file, overrides, command);
  Node root;
  root.kind = Node::Kind::kMap;
  return load_tree(std::move(root), file, overrides, command);
}

Loaded parse_config(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                    Command command) {
  Node root = parse_text(text, name);
  check_root(root, name);
  return load_tree(std::move(root), name, overrides, command);
}

}  // namespace expertmesh::config
