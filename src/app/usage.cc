// SPDX-License-Identifier: Apache-2.0
#include "app/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "config/suggest.h"

namespace expertmesh::app {
namespace {

std::vector<std::string> flags_of(const CLI::App& parser) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : parser.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// The first argument that looks like a flag and is none.
std::string unknown_flag(const CLI::App& parser, const Arguments& arguments) {
  const auto flags = flags_of(parser);
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::string flag = argument.substr(0, argument.find('='));
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) return flag;
  }
  return {};
}

}  // namespace

std::unique_ptr<CLI::App> make_parser(std::string_view command) {
  for (const Command& row : commands()) {
    if (row.name != command) continue;
    auto parser = std::make_unique<CLI::App>(std::string(row.summary), "expertmesh " + std::string(row.name));
    parser->footer("Example: " + std::string(row.example));
    parser->get_formatter()->column_width(34);
    return parser;
  }
  throw base::make_error(base::Code::kInternal, "internal", "no command {}", command);
}

void parse(CLI::App& parser, const Arguments& arguments) {
  try {
    parser.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(parser.help().c_str(), stdout);
    throw HelpShown{};
  } catch (const CLI::ParseError& e) {
    const std::string flag = unknown_flag(parser, arguments);
    if (flag.empty()) {
      throw base::make_error(base::Code::kUsage, "app/arguments", "{}", e.what())
          .hint(fmt::format("See `{} --help`.", parser.get_name()));
    }
    const auto near = config::try_nearest(flag, flags_of(parser));
    throw base::make_error(base::Code::kUsage, "app/flag", "there is no flag {}", flag)
        .hint(near ? fmt::format("Did you mean {}?", *near) : fmt::format("See `{} --help`.", parser.get_name()));
  }
}

Positionals split_positionals(const std::vector<std::string>& arguments) {
  Positionals result;
  for (const std::string& argument : arguments) {
    if (argument.find('=') != std::string::npos) {
      result.overrides.push_back(argument);
    } else if (result.config_file.empty()) {
      result.config_file = argument;
    } else {
      throw base::make_error(base::Code::kUsage, "app/arguments",
                             "\"{}\" is neither key=value nor the only configuration file (that is \"{}\")", argument,
                             result.config_file)
          .hint("Give one file, then key=value overrides.");
    }
  }
  return result;
}

}  // namespace expertmesh::app
