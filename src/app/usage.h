// SPDX-License-Identifier: Apache-2.0
// Command-line parsing on top of CLI11: errors become kUsage with the nearest flag, and every help ends with an
// example.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/command.h"

namespace CLI {
class App;
}

namespace expertmesh::app {

// Thrown after --help was printed: the command ends with success.
struct HelpShown {};

// A parser for one command, with its summary and example from the table.
std::unique_ptr<CLI::App> make_parser(std::string_view command);
void parse(CLI::App& parser, const Arguments& arguments);

// Splits positional arguments: `config.yaml` (at most one, without `=`) and `key=value` overrides.
struct Positionals {
  std::string config_file;
  std::vector<std::string> overrides;
};
Positionals split_positionals(const std::vector<std::string>& arguments);

// A flag that stands for a key of the configuration: "--model", its value; no value: not given.
struct KeyFlag {
  std::string_view flag;
  std::optional<std::string> value;
};
// The overrides, and those of the flags behind them, so that the user's keep their numbers in messages. Throws kUsage
// for a key that was given both ways.
std::vector<std::string> overrides_with_flags(const Positionals& positionals, std::span<const KeyFlag> flags);

}  // namespace expertmesh::app
