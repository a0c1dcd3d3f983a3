// SPDX-License-Identifier: Apache-2.0
// Builders of schema rows for the kinds of values that keys have. Only schema files include this.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/schema.h"
#include "config/suggest.h"

namespace expertmesh::config {

template <typename E>
std::vector<std::string_view> choice_names() {
  std::vector<std::string_view> names;
  for (const ChoiceName<E>& row : choices<E>()) names.push_back(row.name);
  return names;
}

// A choice by its spelling; the error lists the valid ones, and says why a refused name is refused.
template <typename E>
E read_choice_text(std::string_view text, const std::string& described) {
  if (const auto value = try_choice<E>(text)) return *value;
  const std::vector<std::string_view> names = choice_names<E>();
  const std::string expected = names.size() == 1 ? std::string(names[0]) : "one of " + join_names(names);
  for (const RefusedName& refused : refused_names<E>()) {
    if (refused.name == text) {
      throw ValueError{fmt::format("is {}, which is not supported; expected {}", described, expected),
                       std::string(refused.instead)};
    }
  }
  const auto near = try_nearest(text, std::span<const std::string_view>(names));
  throw ValueError{fmt::format("is {}, expected {}", described, expected),
                   near ? fmt::format("Did you mean {}?", *near) : ""};
}

template <typename E>
E read_choice(const Node& node) {
  if (!node.is_scalar()) {
    throw ValueError{fmt::format("is {}, expected one of {}", describe(node), join_names(choice_names<E>())), ""};
  }
  return read_choice_text<E>(node.text, node.is_quoted ? shorten(node.text) : describe(node));
}

// A list of text; comma text too where the key takes it.
std::vector<std::string> read_text_list(const Node& node, bool takes_comma_text);
base::Json write_text_list(const std::vector<std::string>& list);

// "a, b" without blanks and empty parts.
std::vector<std::string> split_commas(std::string_view text);

// Rows of one struct of Config: Rows<DataConfig>{fields, &Config::data}.integer("cutoff_len", &DataConfig::cutoff_len,
// ...).
template <typename Owner>
class Rows {
 public:
  Rows(std::vector<Field>& fields, Owner Config::* owner) : fields_(fields), owner_(owner) {}

  // The key stays in the table, but only where `applies` (given the section's name) says so.
  Rows& only_for(std::string names, std::function<bool(const Config&)> applies) {
    only_for_ = std::move(names);
    applies_ = std::move(applies);
    return *this;
  }

  void flag(std::string key, bool Owner::* member, std::string doc) {
    add(
        std::move(key), "true or false", "", std::move(doc), false,
        [](const Node& node, const ReadContext& context) { return read_bool(node, context.quotes); }, member,
        [](bool value) { return base::Json(value); });
  }

  void integer(std::string key, int64_t Owner::* member, IntegerRange range, std::string unit, std::string doc) {
    add(
        std::move(key), without_article(integer_expectation(range)), std::move(unit), std::move(doc), false,
        [range](const Node& node, const ReadContext& context) { return read_integer(node, range, context.quotes); },
        member, [](int64_t value) { return base::Json(value); });
  }

  void integer(std::string key, std::optional<int64_t> Owner::* member, IntegerRange range, std::string unit,
               std::string doc) {
    add_optional(
        std::move(key), without_article(integer_expectation(range)), std::move(unit), std::move(doc),
        [range](const Node& node, const ReadContext& context) { return read_integer(node, range, context.quotes); },
        member);
  }

  void number(std::string key, double Owner::* member, NumberRange range, std::string unit, std::string doc) {
    add(
        std::move(key), without_article(number_expectation(range)), std::move(unit), std::move(doc), false,
        [range](const Node& node, const ReadContext& context) { return read_number(node, range, context.quotes); },
        member, [](double value) { return base::Json(value); });
  }

  void number(std::string key, std::optional<double> Owner::* member, NumberRange range, std::string unit,
              std::string doc) {
    add_optional(
        std::move(key), without_article(number_expectation(range)), std::move(unit), std::move(doc),
        [range](const Node& node, const ReadContext& context) { return read_number(node, range, context.quotes); },
        member);
  }

  // Two numbers, as the betas of Adam.
  void pair(std::string key, double Owner::* first, double Owner::* second, std::string doc) {
    const NumberRange range{0.0, 0.999999999, false, false};
    Field field = start(std::move(key), "list of two numbers from 0 to below 1", "", std::move(doc), false);
    field.read = [owner = owner_, first, second, range](const Node& node, const ReadContext& context, Config& config) {
      if (node.kind != Node::Kind::kList || node.items.size() != 2) {
        throw ValueError{fmt::format("is {}, expected a list of two numbers", describe(node)), "Write [0.9, 0.999]."};
      }
      config.*owner.*first = read_number(node.items[0], range, context.quotes);
      config.*owner.*second = read_number(node.items[1], range, context.quotes);
    };
    field.write = [owner = owner_, first, second](const Config& config) {
      return base::Json(base::Json::Array{config.*owner.*first, config.*owner.*second});
    };
    fields_.push_back(std::move(field));
  }

  // Text that must be given for training: absent and null both leave it empty.
  void text(std::string key, std::string Owner::* member, std::string doc) {
    Field field = start(std::move(key), "text", "", std::move(doc), true);
    field.read = [owner = owner_, member](const Node& node, const ReadContext& context, Config& config) {
      config.*owner.*member = node.is_null() ? "" : nonempty_text(node, context);
    };
    field.write = [owner = owner_, member](const Config& config) {
      const std::string& value = config.*owner.*member;
      return value.empty() ? base::Json() : base::Json(value);
    };
    fields_.push_back(std::move(field));
  }

  void text(std::string key, std::optional<std::string> Owner::* member, std::string doc) {
    add_optional(std::move(key), "text", "", std::move(doc), nonempty_text, member);
  }

  template <typename E>
  void choice(std::string key, E Owner::* member, std::string doc) {
    const std::string names = join_names(choice_names<E>());
    add(
        std::move(key), choices<E>().size() == 1 ? names : "one of " + names, "", std::move(doc), false,
        [](const Node& node, const ReadContext&) { return read_choice<E>(node); }, member,
        [](E value) { return base::Json(choice_name(value)); });
  }

  void text_list(std::string key, std::vector<std::string> Owner::* member, bool takes_comma_text, std::string doc) {
    Field field = start(std::move(key), list_type(takes_comma_text), "", std::move(doc), true);
    field.read = [owner = owner_, member, takes_comma_text](const Node& node, const ReadContext&, Config& config) {
      config.*owner.*member = node.is_null() ? std::vector<std::string>() : read_text_list(node, takes_comma_text);
    };
    field.write = [owner = owner_, member](const Config& config) { return write_text_list(config.*owner.*member); };
    fields_.push_back(std::move(field));
  }

  void text_list(std::string key, std::optional<std::vector<std::string>> Owner::* member, bool takes_comma_text,
                 std::string doc) {
    Field field = start(std::move(key), list_type(takes_comma_text), "", std::move(doc), true);
    field.read = [owner = owner_, member, takes_comma_text](const Node& node, const ReadContext&, Config& config) {
      auto& value = config.*owner.*member;
      value.reset();
      if (!node.is_null()) value = read_text_list(node, takes_comma_text);
    };
    field.write = [owner = owner_, member](const Config& config) {
      const auto& value = config.*owner.*member;
      return value ? write_text_list(*value) : base::Json();
    };
    fields_.push_back(std::move(field));
  }

  // Anything else: the row with its own reader and writer.
  void special(std::string key, std::string type, std::string unit, std::string doc, bool is_nullable,
               std::function<void(const Node&, const ReadContext&, Owner&)> read,
               std::function<base::Json(const Owner&)> write) {
    Field field = start(std::move(key), std::move(type), std::move(unit), std::move(doc), is_nullable);
    field.read = [owner = owner_, read = std::move(read)](const Node& node, const ReadContext& context,
                                                          Config& config) { read(node, context, config.*owner); };
    field.write = [owner = owner_, write = std::move(write)](const Config& config) { return write(config.*owner); };
    fields_.push_back(std::move(field));
  }

 private:
  static std::string without_article(const std::string& text) { return text.substr(text.find(' ') + 1); }
  static std::string list_type(bool takes_comma_text) {
    return takes_comma_text ? "list of text, or text with commas" : "list of text";
  }

  static std::string nonempty_text(const Node& node, const ReadContext&) {
    std::string value = read_text(node, node.is_override);
    if (value.find_first_not_of(" \t\n") == std::string::npos) {
      throw ValueError{"is empty, expected text", "Leave the key out, or give a value."};
    }
    return value;
  }

  Field start(std::string key, std::string type, std::string unit, std::string doc, bool is_nullable) {
    Field field;
    field.key = std::move(key);
    field.type = std::move(type);
    field.unit = std::move(unit);
    field.doc = std::move(doc);
    field.is_nullable = is_nullable;
    field.only_for = only_for_;
    field.applies = applies_;
    return field;
  }

  template <typename T, typename Read, typename Write>
  void add(std::string key, std::string type, std::string unit, std::string doc, bool is_nullable, Read read,
           T Owner::* member, Write write) {
    Field field = start(std::move(key), std::move(type), std::move(unit), std::move(doc), is_nullable);
    field.read = [owner = owner_, member, read](const Node& node, const ReadContext& context, Config& config) {
      config.*owner.*member = read(node, context);
    };
    field.write = [owner = owner_, member, write](const Config& config) { return write(config.*owner.*member); };
    fields_.push_back(std::move(field));
  }

  template <typename T, typename Read>
  void add_optional(std::string key, std::string type, std::string unit, std::string doc, Read read,
                    std::optional<T> Owner::* member) {
    Field field = start(std::move(key), std::move(type), std::move(unit), std::move(doc), true);
    field.read = [owner = owner_, member, read](const Node& node, const ReadContext& context, Config& config) {
      auto& value = config.*owner.*member;
      value.reset();
      if (!node.is_null()) value = read(node, context);
    };
    field.write = [owner = owner_, member](const Config& config) {
      const auto& value = config.*owner.*member;
      return value ? base::Json(*value) : base::Json();
    };
    fields_.push_back(std::move(field));
  }

  std::vector<Field>& fields_;
  Owner Config::* owner_;
  std::string only_for_;
  std::function<bool(const Config&)> applies_;
};

// The tables of the two schema files.
std::vector<Section> top_level_groups();
std::vector<Section> file_sections();

}  // namespace expertmesh::config
