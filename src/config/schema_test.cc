// SPDX-License-Identifier: Apache-2.0
// Walks the schema: every key survives printing and reading, every key refuses the wrong types, and the pages and the
// key list that are made from it are current.
#include "config/schema.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "config/docs.h"
#include "config/fields.h"
#include "config/print.h"
#include "config/test_util.h"
#include "config/validate.h"
#include "config/yaml_text.h"

namespace expertmesh::config {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A key with all it takes to stand in a file: its section's name before it.
struct Probe {
  const Section* section;
  const Field* field;
  std::string name;  // of the section

  std::string path() const { return key_path(*section, *field); }
  std::string text(const std::string& value) const {
    if (section->key.empty()) return fmt::format("{}: {}\n", field->key, value);
    if (field->key == "name") return fmt::format("{}:\n  name: {}\n", section->key, value);
    return fmt::format("{}:\n  name: {}\n  {}: {}\n", section->key, name, field->key, value);
  }
};

std::vector<Probe> all_probes() {
  std::vector<Probe> probes;
  for (const Section& group : schema().groups) {
    for (const Field& field : group.fields) probes.push_back({&group, &field, ""});
  }
  const std::map<std::string, std::string> names = {
      {"dist_config", "fsdp2"},   {"init_config", "init_on_meta"},   {"kernel_config", "auto"},
      {"optim_config", "adamw"},  {"lr_scheduler_config", "linear"}, {"peft_config", "lora"},
      {"quant_config", "unused"},
  };
  for (const Section& section : schema().sections) {
    for (const Field& field : section.fields) {
      const std::string first = field.only_for.substr(0, field.only_for.find(','));
      probes.push_back({&section, &field, first.empty() ? names.at(section.key) : first});
    }
  }
  return probes;
}

// A file that gives the two required keys unless the probe is one of them.
std::string file_with(const Probe& probe, const std::string& value) {
  std::string text = probe.text(value);
  if (probe.field->key != "model") text = "model: m\n" + text;
  if (probe.field->key != "train_dataset") text = "train_dataset: d\n" + text;
  // Keys that need others to be a valid combination.
  if (probe.field->key == "batching_strategy") text += "flash_attn: flash_attention_2\nmax_steps: 5\n";
  if (probe.field->key == "moe_aux_loss") text += "router_aux_loss_coef: 0.01\n";
  return text;
}

const std::vector<std::string>& candidates() {
  static const std::vector<std::string> kCandidates = [] {
    std::vector<std::string> values = {"true",
                                       "false",
                                       "1",
                                       "2",
                                       "7",
                                       "16",
                                       "32",
                                       "0.25",
                                       "0.5",
                                       "1.5",
                                       ".inf",
                                       "1e-7",
                                       "0.30000000000000004",
                                       "123456789.123",
                                       "3",
                                       "100",
                                       "null",
                                       "[0.5, 0.75]",
                                       "[0, 0.9]",
                                       "[a.b, 'c: d # e', \"no\", '1']",
                                       "[x]",
                                       "'some: text # with \"odd\" \\ chars'",
                                       "\"line\\nbreak\\ttab\\x7f\"",
                                       "'2024'",
                                       "'~'",
                                       "\"\xF0\x9F\x98\x80 \xE6\xA8\xA1\"",
                                       "plain/path.x-1",
                                       "hot:2@1",
                                       "balanced",
                                       "none:0"};
    // Every name of every choice.
    std::set<std::string> names;
    for (const Probe& probe : all_probes()) {
      const std::string& type = probe.field->type;
      for (const std::string_view before : {"one of ", "list of "}) {
        const size_t at = type.find(before);
        if (at == std::string::npos) continue;
        for (const std::string& name : split_commas(std::string_view(type).substr(at + before.size()))) {
          names.insert(name);
        }
      }
    }
    values.insert(values.end(), names.begin(), names.end());
    return values;
  }();
  return kCandidates;
}

TEST(Schema, EveryAcceptedValueSurvivesPrintingAndReading) {
  int round_trips = 0;
  for (const Probe& probe : all_probes()) {
    std::set<std::string> distinct;
    for (const std::string& value : candidates()) {
      Loaded loaded;
      try {
        loaded = parse_config(file_with(probe, value), "c.yaml", {}, Command::kOther);
      } catch (const base::Error&) {
        continue;
      }
      const std::string printed = print_yaml(loaded.config);
      const Config again = parse_config(printed, "r.yaml", {}, Command::kOther).config;
      EXPECT_EQ(again, loaded.config) << probe.text(value) << printed;
      EXPECT_EQ(print_yaml(again), printed);
      EXPECT_EQ(config_hash(again), config_hash(loaded.config));
      distinct.insert(printed);
      ++round_trips;
    }
    // A key whose value does not show in the print would be lost on resume.
    const bool has_one_value =
        probe.field->is_ignored || probe.field->key == "dcp_path" || probe.field->type.find(' ') == std::string::npos;
    if (!has_one_value || probe.field->type == "text") {
      EXPECT_GE(distinct.size(), 2U) << probe.path() << " (" << probe.field->type << ")";
    }
  }
  EXPECT_GT(round_trips, 500);
}

// Values that are wrong for most keys. Each is either accepted, or refused with place, key and our words.
TEST(Schema, WrongTypesOfEveryKey) {
  const std::vector<std::string> wrong = {"{a: 1}",
                                          "[[1]]",
                                          "[{a: 1}]",
                                          "010",
                                          "0x10",
                                          ".nan",
                                          "-.inf",
                                          "maybe",
                                          "-3",
                                          "-0.5",
                                          "1e999",
                                          "12.5",
                                          "''",
                                          "[]",
                                          "['', a]",
                                          "y",
                                          "\"7x\"",
                                          "2020-01-01",
                                          "99999999999999999999"};
  int refused = 0;
  for (const Probe& probe : all_probes()) {
    int refused_here = 0;
    for (const std::string& value : wrong) {
      try {
        parse_config(file_with(probe, value), "c.yaml", {}, Command::kOther);
      } catch (const base::Error& error) {
        ++refused_here;
        const std::string text = error.text();
        EXPECT_EQ(error.code(), base::Code::kConfig) << text;
        EXPECT_THAT(text, StartsWith("error[config/")) << value;
        EXPECT_THAT(text, HasSubstr("c.yaml:")) << value;
        EXPECT_THAT(text, HasSubstr(probe.path())) << value;
        EXPECT_THAT(text, AnyOf(HasSubstr("expected"), HasSubstr("holds an empty text"), HasSubstr("nothing would")))
            << value;
        EXPECT_THAT(text, Not(AnyOf(HasSubstr("bad conversion"), HasSubstr("std::"), HasSubstr("yaml-cpp"))));
      }
    }
    EXPECT_GE(refused_here, 3) << probe.path();
    refused += refused_here;
  }
  EXPECT_GT(refused, 1000);
}

// What each type refuses, whatever the key.
TEST(Schema, TypesMeanTheSameEverywhere) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> rules = {
      {"integer", {"true", "12.5", "1e3", "010", "0x10", "word", "[1]", "{a: 1}", "'1x'", "-9223372036854775809"}},
      {"number", {"true", "word", ".nan", "010", "[1]", "{a: 1}", "1e999", "'x'"}},
      {"true or false", {"1", "0", "y", "n", "maybe", "[true]", "{a: 1}", "null", "'yes'"}},
      {"one of", {"true", "Other", "[eager]", "{a: 1}", "null", "''", "1"}},
      {"text", {"[a]", "{a: 1}", "12", "true", "1.5", "''"}},
      {"list of text", {"12", "true", "{a: 1}", "[[a]]", "[1]", "[true]", "['']"}},
  };
  std::set<std::string> seen;
  for (const Probe& probe : all_probes()) {
    for (const auto& [type, values] : rules) {
      const bool is_exact = type == "text" || type == "true or false";
      if (is_exact ? probe.field->type != type : !probe.field->type.starts_with(type)) continue;
      seen.insert(type);
      for (const std::string& value : values) {
        if (type == "one of" && value == "true" && probe.field->type.find(", true,") != std::string::npos) continue;
        const std::string message =
            error_of([&] { parse_config(file_with(probe, value), "c.yaml", {}, Command::kOther); });
        EXPECT_THAT(message, HasSubstr(probe.field->key)) << probe.text(value);
      }
    }
  }
  EXPECT_EQ(seen.size(), rules.size());
}

TEST(Schema, KeysAreUniqueAndDescribed) {
  std::set<std::string> paths;
  for (const Probe& probe : all_probes()) {
    EXPECT_TRUE(paths.insert(probe.path()).second) << probe.path();
    EXPECT_FALSE(probe.field->type.empty()) << probe.path();
    EXPECT_TRUE(probe.field->doc.ends_with('.')) << probe.path() << ": " << probe.field->doc;
  }
  for (const Section& section : schema().sections) EXPECT_TRUE(paths.insert(section.key).second) << section.key;
}

TEST(Schema, HashTellsConfigurationsApart) {
  const Config a = parse_ok("").config;
  EXPECT_EQ(config_hash(a), config_hash(parse_ok("bf16: true\n").config));
  EXPECT_NE(config_hash(a), config_hash(parse_ok("bf16: false\n").config));
  EXPECT_NE(config_hash(a), config_hash(parse_ok("seed: 43\n").config));
}

TEST(Print, Scalars) {
  EXPECT_EQ(yaml_number(1.0), "1.0");
  EXPECT_EQ(yaml_number(1e-5), "1e-05");
  EXPECT_EQ(yaml_number(std::numeric_limits<double>::infinity()), ".inf");
  EXPECT_EQ(yaml_text("plain/path-1.x"), "plain/path-1.x");
  EXPECT_EQ(yaml_text("no"), "\"no\"");
  EXPECT_EQ(yaml_text("1e5"), "\"1e5\"");
  EXPECT_EQ(yaml_text("-a"), "\"-a\"");
  EXPECT_EQ(yaml_text(""), "\"\"");
  EXPECT_EQ(yaml_text("a: b"), "\"a: b\"");
  EXPECT_EQ(yaml_quote("a\"\\\n\x01"), "\"a\\\"\\\\\\n\\x01\"");
}

TEST(Print, ValuesByPath) {
  const Config config = parse_ok("dist_config: {name: fsdpturbo, ep_size: 2}\n").config;
  EXPECT_EQ(try_value(config, "dist_config.ep_size"), base::Json(2));
  EXPECT_EQ(try_value(config, "seed"), base::Json(42));
  EXPECT_EQ(try_value(config, "kernel_config"), base::Json());
  EXPECT_EQ(try_value(config, "dist_config.betas"), std::nullopt);
  EXPECT_EQ(try_value(config, "nothing"), std::nullopt);
}

std::string read_file(const std::string& path) {
  std::ifstream in(std::string(EXPERTMESH_SOURCE_DIR) + "/" + path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Keys and defaults are an interface: a change here is a change for every user's file.
TEST(Docs, KeyListIsFrozen) {
  EXPECT_EQ(read_file("tests/golden/config_keys.txt"), config_key_list())
      << "keys changed on purpose: build/.../tools/config_docs keys > tests/golden/config_keys.txt";
}

TEST(Docs, PageIsCurrent) {
  EXPECT_EQ(read_file("docs/config.md"), config_page_markdown())
      << "write it again: build/.../tools/config_docs page > docs/config.md";
}

TEST(Docs, PageNamesEveryKey) {
  const std::string page = config_page_markdown();
  for (const Probe& probe : all_probes()) EXPECT_THAT(page, HasSubstr("| `" + probe.field->key + "` |"));
}

}  // namespace
}  // namespace expertmesh::config
