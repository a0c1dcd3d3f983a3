// SPDX-License-Identifier: Apache-2.0
#include "shard/module.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <optional>

namespace expertmesh::shard {
namespace {

struct IntegerRange {
  int64_t low = 0;
  int64_t high = INT64_MAX;
};

std::optional<int64_t> try_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// "{*}" or "{a-b}" at the start of a pattern: the range and how many characters it takes.
std::optional<std::pair<IntegerRange, size_t>> try_braces(std::string_view pattern) {
  if (!pattern.starts_with('{')) return std::nullopt;
  const size_t close = pattern.find('}');
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view inside = pattern.substr(1, close - 1);
  if (inside == "*") return std::pair{IntegerRange{}, close + 1};
  const size_t dash = inside.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto low = try_integer(inside.substr(0, dash));
  const auto high = try_integer(inside.substr(dash + 1));
  if (!low || !high) return std::nullopt;
  return std::pair{IntegerRange{*low, *high}, close + 1};
}

size_t leading_digits(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && std::isdigit(static_cast<unsigned char>(text[count])) != 0) ++count;
  return count;
}

}  // namespace

bool matches_pattern(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (const auto braces = try_braces(pattern)) {
    const size_t digits = leading_digits(name);
    const auto value = try_integer(name.substr(0, digits));
    return value && *value >= braces->first.low && *value <= braces->first.high &&
           matches_pattern(name.substr(digits), pattern.substr(braces->second));
  }
  if (pattern.front() == '*') {
    for (size_t taken = 0; taken <= name.size(); ++taken) {
      if (matches_pattern(name.substr(taken), pattern.substr(1))) return true;
    }
    return false;
  }
  if (name.empty() || (pattern.front() != '?' && pattern.front() != name.front())) return false;
  return matches_pattern(name.substr(1), pattern.substr(1));
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& parameter : parameters_) all.push_back(parameter.get());
  for (const Module* child : children_) {
    for (Parameter* parameter : child->parameters()) all.push_back(parameter);
  }
  return all;
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> all{this};
  for (Module* child : children_) {
    for (Module* module : child->modules()) all.push_back(module);
  }
  return all;
}

Parameter& Module::add_parameter(std::string_view name, std::vector<int64_t> shape, const Parameter::Options& options) {
  parameters_.push_back(std::make_unique<Parameter>(fmt::format("{}.{}", path_, name), std::move(shape), options));
  return *parameters_.back();
}

}  // namespace expertmesh::shard
