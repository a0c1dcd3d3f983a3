// SPDX-License-Identifier: Apache-2.0
#include "app/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
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

// The first argument that looks like a flag and is none; numbers below 0 are values.
std::string unknown_flag(const CLI::App& parser, const Arguments& arguments) {
  const auto flags = flags_of(parser);
  for (const std::string& argument : arguments) {
    if (argument.size() < 2 || argument[0] != '-' || std::isdigit(static_cast<unsigned char>(argument[1])) != 0)
      continue;
    const std::string flag = argument.substr(0, argument.find('='));
    if (flag != "-h" && std::find(flags.begin(), flags.end(), flag) == flags.end()) return flag;
  }
  return {};
}

bool is_number(const std::string& text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size();
}

bool is_integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size();
}

// What is wrong with arguments that have no unknown flag, in our words.
std::string fault_in(const CLI::App& parser, const CLI::ParseError& e) {
  for (const CLI::Option* option : parser.get_options()) {
    const std::string type = option->get_type_name();
    const bool wants_integer = type == "INT" || type == "UINT";
    if (!wants_integer && type != "FLOAT") continue;
    for (const std::string& given : option->results()) {
      if (wants_integer ? is_integer(given) : is_number(given)) continue;
      return fmt::format("{} is \"{}\", not {}", option->get_name(), given, wants_integer ? "an integer" : "a number");
    }
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&e) != nullptr) {
    const std::string text = e.what();  // "--ranks: 1 required INT missing"
    return fmt::format("{} needs one value", text.substr(0, text.find(':')));
  }
  if (const auto extras = parser.remaining(); !extras.empty()) {
    return fmt::format("\"{}\" is one argument too many", extras.front());
  }
  return e.what();  // "--model is required"
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
      throw base::make_error(base::Code::kUsage, "app/arguments", "{}", fault_in(parser, e))
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

std::vector<std::string> overrides_with_flags(const Positionals& positionals, std::span<const KeyFlag> flags) {
  std::vector<std::string> overrides = positionals.overrides;
  for (const KeyFlag& flag : flags) {
    if (!flag.value) continue;
    const std::string key = std::string(flag.flag.substr(2)) + "=";
    for (const std::string& given : positionals.overrides) {
      if (!given.starts_with(key)) continue;
      throw base::make_error(base::Code::kUsage, "app/arguments", "{} {} was given together with {}", flag.flag,
                             *flag.value, given)
          .hint("Keep one of them.");
    }
    overrides.push_back(key + *flag.value);
  }
  return overrides;
}

}  // namespace expertmesh::app
