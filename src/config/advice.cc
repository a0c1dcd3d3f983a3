// SPDX-License-Identifier: Apache-2.0
// Unknown keys: a key of another section names that section; otherwise the nearest name of the same place comes first.
#include <fmt/format.h>

#include "config/reader.h"
#include "config/schema.h"
#include "config/suggest.h"

namespace expertmesh::config {
namespace {

// Names of other trainers that people bring, and the key that does the same here.
struct ForeignKey {
  std::string_view key;
  std::string_view instead;
};
constexpr ForeignKey kForeignKeys[] = {
    {"model_name_or_path", "Use model."},
    {"dataset", "Use train_dataset."},
    {"gradient_accumulation_steps", "Set global_batch_size: samples a step over all ranks."},
    {"per_device_train_batch_size", "Use micro_batch_size."},
    {"lr_scheduler_type", "Use lr_scheduler_config: {name: ...}."},
    {"gradient_checkpointing", "Use enable_activation_checkpointing."},
    {"expert_parallel_size", "Use dist_config: {name: fsdpturbo, ep_size: ...}."},
    {"deepspeed", "Use dist_config: {name: fsdp2} or {name: fsdpturbo}."},
};

std::vector<std::string> keys_of_top() {
  std::vector<std::string> keys;
  for (const Section& group : schema().groups) {
    for (const Field& field : group.fields) keys.push_back(field.key);
  }
  for (const Section& section : schema().sections) keys.push_back(section.key);
  return keys;
}

std::vector<std::string> keys_of_section(const Section& section) {
  std::vector<std::string> keys;
  keys.reserve(section.fields.size());
  for (const Field& field : section.fields) keys.push_back(field.key);
  return keys;
}

std::vector<std::string> sections_with(std::string_view key) {
  std::vector<std::string> names;
  for (const Section& section : schema().sections) {
    if (section.find(key) != nullptr) names.push_back(section.key);
  }
  return names;
}

// The nearest key of any section, as "ep_size in dist_config".
std::optional<std::string> try_nearest_in_sections(std::string_view key) {
  std::vector<std::string> all;
  for (const Section& section : schema().sections) {
    for (const std::string& name : keys_of_section(section)) all.push_back(name);
  }
  const auto near = try_nearest(key, all);
  if (!near) return std::nullopt;
  return fmt::format("{} in {}", *near, join_names(sections_with(*near)));
}

std::optional<std::string> try_refusal(std::string_view section_key, std::string_view key) {
  for (const Section& section : schema().sections) {
    if (!section_key.empty() && section.key != section_key) continue;
    for (const RefusedKey& refused : section.refused) {
      if (refused.key == key) return std::string(refused.instead);
    }
  }
  return std::nullopt;
}

KeyAdvice advise_top(std::string_view key) {
  const std::vector<std::string> sections = sections_with(key);
  if (!sections.empty()) {
    return {fmt::format("{} is no top-level key, it belongs in {}", key, join_names(sections)),
            fmt::format("Write it indented under {}.", sections[0])};
  }
  for (const ForeignKey& foreign : kForeignKeys) {
    if (foreign.key == key) return {fmt::format("unknown key {}", key), std::string(foreign.instead)};
  }
  if (const auto near = try_nearest(key, keys_of_top())) {
    return {fmt::format("unknown key {}", shorten(key)), fmt::format("Did you mean {}?", *near)};
  }
  if (const auto near = try_nearest_in_sections(key)) {
    return {fmt::format("unknown key {}", shorten(key)), fmt::format("Did you mean {}?", *near)};
  }
  return {fmt::format("unknown key {}", shorten(key)), "docs/config.md lists all keys."};
}

KeyAdvice advise_in_section(const Section& section, std::string_view key) {
  const std::string path = fmt::format("{}.{}", section.key, shorten(key));
  if (schema().find_top(key) != nullptr || schema().find_section(key) != nullptr) {
    return {fmt::format("{} is a top-level key, not one of {}", key, section.key), "Move it to the top level."};
  }
  const std::vector<std::string> sections = sections_with(key);
  if (!sections.empty()) {
    return {fmt::format("{} is no key of {}, it belongs in {}", key, section.key, join_names(sections)), ""};
  }
  const std::vector<std::string> own = keys_of_section(section);
  if (const auto near = try_nearest(key, own)) {
    return {fmt::format("unknown key {}", path), fmt::format("Did you mean {}?", *near)};
  }
  if (const auto near = try_nearest(key, keys_of_top())) {
    return {fmt::format("unknown key {}", path), fmt::format("Did you mean {} at the top level?", *near)};
  }
  return {fmt::format("unknown key {}", path), fmt::format("Its keys are {}.", join_names(own))};
}

}  // namespace

KeyAdvice advise_unknown_key(std::string_view section_key, std::string_view key) {
  if (const auto refusal = try_refusal(section_key, key)) {
    return {fmt::format("{} is not supported", key), *refusal};
  }
  const Section* section = schema().find_section(section_key);
  return section == nullptr ? advise_top(key) : advise_in_section(*section, key);
}

}  // namespace expertmesh::config
