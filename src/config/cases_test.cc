// SPDX-License-Identifier: Apache-2.0
// Every file of tests/cases/config through the room, in the order of a command: load, sizes for the world and model,
// kernels, what is not built. waiting.json lists what only a real run can show, and what is refused until it is built.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "config/load.h"
#include "config/print.h"
#include "config/validate.h"

namespace expertmesh::config {
namespace {

using base::Json;

const std::string kFolder = std::string(EXPERTMESH_SOURCE_DIR) + "/tests/cases/config/";

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

const Json& cases() {
  static const Json kCases = base::parse_json(read(kFolder + "expected.json"));
  return kCases;
}

const Json& waiting() {
  static const Json kWaiting = base::parse_json(read(kFolder + "waiting.json"));
  return kWaiting;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string without(std::string text, const std::string& part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part)) text.erase(at, part.size());
  return text;
}

// The message holds the entry, without regard to case; the file's name counts only for entries that name it.
bool message_holds(const std::string& message, const std::string& file, const std::string& entry) {
  const bool names_file = entry.find(file) != std::string::npos;
  const std::string searched = names_file ? message : without(without(message, kFolder + file), file);
  return lower(searched).find(lower(entry)) != std::string::npos;
}

void expect_holds(const std::string& message, const std::string& file, const Json& contains) {
  for (const Json& entry : *contains.try_array()) {
    if (const std::string* text = entry.try_string()) {
      EXPECT_TRUE(message_holds(message, file, *text)) << "not in the message: " << *text << "\n" << message;
      continue;
    }
    bool any = false;
    for (const Json& choice : *entry.try_array()) any = any || message_holds(message, file, *choice.try_string());
    EXPECT_TRUE(any) << "none of " << base::dump_json(entry) << " in\n" << message;
  }
}

// The two models that the files name (tests/cases/weights/models).
ModelSizes sizes_of(const Config& config) {
  ModelSizes sizes{.num_experts = 4, .num_experts_per_tok = 2, .num_attention_heads = 2, .has_linear_attention = false};
  sizes.has_linear_attention = config.model.path.find("qwen3_5") != std::string::npos;
  return sizes;
}

struct Given {
  Command command = Command::kSft;
  int64_t world = 4;
  std::vector<std::string> overrides;
};

Given given_of(const Json& entry) {
  Given given;
  const Json* json = entry.find("given");
  if (json == nullptr) return given;
  if (const Json* command = json->find("command")) {
    EXPECT_EQ(*command->try_string(), "dpo");
    given.command = Command::kDpo;
  }
  if (const Json* world = json->find("world")) given.world = *world->try_int64();
  if (const Json* overrides = json->find("overrides")) {
    for (const Json& text : *overrides->try_array()) given.overrides.push_back(*text.try_string());
  }
  return given;
}

void expect_value(const Json& got, const Json& wanted, const std::string& key) {
  if (wanted.is_number()) {
    ASSERT_TRUE(got.is_number()) << key;
    EXPECT_DOUBLE_EQ(*got.try_double(), *wanted.try_double()) << key;
    return;
  }
  EXPECT_EQ(base::dump_json(got), base::dump_json(wanted)) << key;
}

Json derived_value(const std::string& key, const Config& config, const WorldSizes& sizes) {
  if (key == "dp_size") return sizes.dp_size;
  if (key == "ep_size") return sizes.ep_size;
  if (key == "efsdp_size") return sizes.efsdp_size;
  if (key == "edp_size") return sizes.edp_size;
  if (key == "num_micro_batch") return sizes.num_micro_batch;
  if (key == "global_batch_size") return sizes.global_batch_size;
  if (key == "experts_per_rank") return sizes_of(config).num_experts / sizes.ep_size;
  if (key == "optimizer") return *try_value(config, "optim_config.name");
  if (key == "betas") return *try_value(config, "optim_config.betas");
  if (key == "eps") return *try_value(config, "optim_config.eps");
  if (key == "weight_decay") return *try_value(config, "optim_config.weight_decay");
  if (key == "lr_schedule") return *try_value(config, "lr_scheduler_config.name");
  return nullptr;
}

void expect_ok(const std::string& file, const Json& ok, const Given& given) {
  const Loaded loaded = load_config(kFolder + file, given.overrides, given.command);
  const WorldSizes sizes = validate_for_world(loaded, given.world, sizes_of(loaded.config));
  validate_kernels(loaded, sizes_of(loaded.config));
  if (const Json* values = ok.find("values")) {
    for (const auto& [key, wanted] : *values->try_object()) {
      const auto got = try_value(loaded.config, key);
      ASSERT_TRUE(got.has_value()) << key;
      expect_value(*got, wanted, key);
    }
  }
  if (const Json* derived = ok.find("derived")) {
    for (const auto& [key, wanted] : *derived->try_object()) {
      const bool needs_data = key == "steps_per_epoch" || key == "save_steps";
      if (!needs_data) expect_value(derived_value(key, loaded.config, sizes), wanted, key);
    }
  }
  if (const Json* warns = ok.find("warns")) {
    std::string all;
    for (const std::string& warning : loaded.warnings) all += warning + "\n";
    expect_holds(all, file, *warns);
  }
  // What is printed reads back as the same configuration.
  EXPECT_EQ(parse_config(print_yaml(loaded.config), "again.yaml", {}, given.command).config, loaded.config);
}

void run_all_checks(const std::string& file, const Given& given) {
  const Loaded loaded = load_config(kFolder + file, given.overrides, given.command);
  validate_for_world(loaded, given.world, sizes_of(loaded.config));
  validate_kernels(loaded, sizes_of(loaded.config));
  refuse_unbuilt(loaded, given.command);
}

class ConfigCases : public testing::TestWithParam<std::string> {};

TEST_P(ConfigCases, AsExpected) {
  const std::string& file = GetParam();
  const Json& entry = *cases().find(file);
  const Given given = given_of(entry);
  const Json* waits = waiting().find(file);
  if (const Json* ok = entry.find("ok")) {
    expect_ok(file, *ok, given);
    if (waits == nullptr || waits->find("needs") != nullptr) {
      EXPECT_NO_THROW(run_all_checks(file, given));
    }
  }
  if (waits != nullptr && waits->find("needs") != nullptr) {
    EXPECT_NO_THROW(run_all_checks(file, given)) << "listed in waiting.json as a valid configuration";
    return;
  }
  if (waits != nullptr) {
    // Fails as soon as the feature is built: then the entry leaves the list.
    try {
      run_all_checks(file, given);
      FAIL() << file << " is accepted: remove it from waiting.json";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kConfig);
      EXPECT_TRUE(message_holds(error.text(), file, *waits->find("refused_key")->try_string())) << error.text();
      EXPECT_TRUE(message_holds(error.text(), file, "not built")) << error.text();
    }
    return;
  }
  const Json* wanted = entry.find("error");
  if (wanted == nullptr) return;
  try {
    run_all_checks(file, given);
    FAIL() << file << " is accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kConfig);
    expect_holds(error.text(), file, *wanted->find("contains"));
  }
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& [file, entry] : *cases().try_object()) names.push_back(file);
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, ConfigCases, testing::ValuesIn(files()), test_name);

// These files are about their bytes: an editor that tidies them up would make their tests pass for nothing.
TEST(ConfigCasesList, BytesAreUnchanged) {
  const std::string bom = read(kFolder + "ok_bom_and_crlf.yaml");
  EXPECT_TRUE(bom.starts_with("\xEF\xBB\xBF"));
  EXPECT_EQ(std::count(bom.begin(), bom.end(), '\r'), 4);
  EXPECT_NE(read(kFolder + "null_byte.yaml").find('\0'), std::string::npos);
  EXPECT_NE(read(kFolder + "not_utf8.yaml").find('\xE9'), std::string::npos);
  EXPECT_NE(read(kFolder + "tab_indent.yaml").find("\n\tname"), std::string::npos);
  EXPECT_EQ(read(kFolder + "deep.yaml").size(), 4008U);
}

TEST(ConfigCasesList, CoversEveryWaitingFile) {
  for (const auto& [file, entry] : *waiting().try_object()) EXPECT_NE(cases().find(file), nullptr) << file;
}

}  // namespace
}  // namespace expertmesh::config
