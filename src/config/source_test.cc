// SPDX-License-Identifier: Apache-2.0
// Files as text: YAML and JSON with two readings, broken bytes, bombs, and places in messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "config/test_util.h"

namespace expertmesh::config {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string yaml_error(const std::string& text) {
  return error_of([&] { parse_config(text, "c.yaml", {}, Command::kOther); });
}

std::string json_error(const std::string& text) {
  return error_of([&] { parse_config(text, "c.json", {}, Command::kOther); });
}

TEST(Yaml, OneReadingOnly) {
  EXPECT_EQ(yaml_error("max_steps: 2\nmax_steps: 3\n"),
            "error[config/max_steps] c.yaml:2:1: the key max_steps is given twice, first at c.yaml:1:1. Keep one of "
            "them.");
  EXPECT_THAT(yaml_error("dist_config: {name: fsdp2, name: fsdp2}\n"), HasSubstr("c.yaml:1:28: the key name"));
  EXPECT_THAT(yaml_error("\"max_steps\": 2\nmax_steps: 3\n"), HasSubstr("given twice"));
  EXPECT_THAT(yaml_error("model: &m a\n"), HasSubstr("c.yaml:1:8: an anchor"));
  EXPECT_THAT(yaml_error("model: *m\n"), HasSubstr("c.yaml:1:8: "));
  EXPECT_THAT(yaml_error("<<: {model: a}\n"), HasSubstr("c.yaml:1:1: a merge key"));
  EXPECT_THAT(yaml_error("max_steps: !!int 3\n"), HasSubstr("c.yaml:1:12: the tag"));
  EXPECT_THAT(yaml_error("model: !secret a\n"), HasSubstr("the tag"));
  EXPECT_THAT(yaml_error("model: a\n---\nmax_steps: 2\n"), HasSubstr("c.yaml:2:1: a second document"));
  EXPECT_THAT(yaml_error("? [a]\n: b\n"), HasSubstr("c.yaml:1:3: a key that is no plain text"));
  EXPECT_THAT(yaml_error("{a: 1}: b\n"), HasSubstr("a key that is no plain text"));
  EXPECT_THAT(yaml_error("~: b\n"), HasSubstr("a key that is no plain text"));
}

TEST(Yaml, SyntaxInOurWords) {
  EXPECT_THAT(yaml_error("model: a\ndist_config: {name: fsdp2\nmax_steps: 2\n"), HasSubstr("that is not closed"));
  EXPECT_THAT(yaml_error("hook: [a, b\n"), HasSubstr("c.yaml:1:7: a bracket that is not closed"));
  EXPECT_THAT(yaml_error("model: \"a\n"), HasSubstr("a quoted text that is not closed"));
  EXPECT_THAT(yaml_error("model: \"a\nmax_steps: 2\n"), HasSubstr("c.yaml:1:8: a quoted text that is not closed"));
  EXPECT_THAT(yaml_error("model: 'it''s\n"), HasSubstr("a quoted text that is not closed"));
  EXPECT_THAT(yaml_error("model: \"a\\\""), HasSubstr("a quoted text that is not closed"));
  EXPECT_THAT(yaml_error("\"model: a\n"), HasSubstr("a quoted text that is not closed"));
  EXPECT_THAT(yaml_error("model: [a, \"b]\n"), HasSubstr("not closed"));
  EXPECT_EQ(parse_ok("output_dir: 'it''s \"here\"'\n").config.train.output_dir, "it's \"here\"");
  EXPECT_EQ(parse_ok("output_dir: \"a\\\"b\\\\\"\n").config.train.output_dir, "a\"b\\");
  EXPECT_THAT(yaml_error("model: a: b\n"), HasSubstr("no `key: value`"));
  EXPECT_THAT(yaml_error("model: a\n  max_steps: 2\n"), HasSubstr("no `key: value`"));
  EXPECT_THAT(yaml_error("model: ]\n"), HasSubstr("c.yaml:1:"));
  EXPECT_THAT(yaml_error("model: \"\\q\"\n"), HasSubstr("escape"));
  EXPECT_THAT(yaml_error("model: @a\n"), HasSubstr("c.yaml:1:"));
  EXPECT_THAT(yaml_error("%YAML 1.2\n---\nmodel: a\n"), HasSubstr("c.yaml:1:1: a directive"));
  EXPECT_THAT(yaml_error("model: a\n%max_steps: 2\n"), HasSubstr("c.yaml:2:1: a directive"));
  for (const char* text :
       {"model: [", "{", "a: }", "- a\nb: c\n", "a: 'b", "a: |\n x\n y\nb", "!", "&", "*", "? ", "a:\n- b\n c: d"}) {
    const std::string message = yaml_error(text);
    EXPECT_THAT(message, StartsWith("error[config")) << text;
    EXPECT_THAT(message, Not(HasSubstr("yaml-cpp"))) << text;
    EXPECT_THAT(message, Not(HasSubstr("illegal"))) << text;
  }
}

// A forgotten colon would otherwise be a key with a null value, which many keys take.
TEST(Yaml, MissingColon) {
  EXPECT_EQ(yaml_error("model: a\nmax_steps\n"),
            "error[config/yaml] c.yaml:2:1: no colon after max_steps. Write `key: value`.");
  EXPECT_THAT(yaml_error("model: a\nmax_steps 3"), HasSubstr("c.yaml:2:1: no colon after max_steps 3"));
  EXPECT_THAT(yaml_error("dist_config:\n  name: fsdp2\n  dcp_path\n"),
              HasSubstr("c.yaml:3:3: no colon after dcp_path"));
  EXPECT_THAT(yaml_error("dist_config: {name: fsdp2, dcp_path}\n"), HasSubstr("no colon after dcp_path"));
  EXPECT_THAT(yaml_error("dist_config: {name: fsdp2, 'dcp_path'}\n"), HasSubstr("no colon after dcp_path"));
  EXPECT_EQ(parse_ok("max_steps : 3\n'seed' : 1\n\"bf16\": no\n").config.train.max_steps, 3);
}

TEST(Yaml, Tabs) {
  EXPECT_EQ(yaml_error("dist_config:\n\tname: fsdp2\n"),
            "error[config/yaml] c.yaml:2:1: a tab in the indentation. Indent with spaces.");
  EXPECT_THAT(yaml_error("dist_config:\n  \tname: fsdp2\n"), HasSubstr("c.yaml:2:3: a tab"));
  EXPECT_EQ(parse_ok("max_steps:\t3\n").config.train.max_steps, 3);  // not in the indentation
}

TEST(Yaml, Roots) {
  EXPECT_THAT(yaml_error(""), HasSubstr("the file is empty"));
  EXPECT_THAT(yaml_error("# only a comment\n\n"), HasSubstr("the file is empty"));
  EXPECT_THAT(yaml_error("---\n"), HasSubstr("the file is empty"));
  EXPECT_THAT(yaml_error("just words\n"), HasSubstr("c.yaml:1:1: the file is just words, expected a mapping"));
  EXPECT_THAT(yaml_error("- model: a\n"), HasSubstr("the file is a list"));
  EXPECT_EQ(parse_config("---\nmodel: a\n...\n", "c.yml", {}, Command::kOther).config.model.path, "a");
}

TEST(Yaml, Bytes) {
  EXPECT_EQ(
      parse_config("\xEF\xBB\xBFmodel: a\r\nmax_steps: 3\r\n", "c.yaml", {}, Command::kOther).config.train.max_steps,
      3);
  EXPECT_EQ(parse_config("model: a\rmax_steps: 3\r", "c.yaml", {}, Command::kOther).config.train.max_steps, 3);
  EXPECT_EQ(parse_ok("output_dir: \"\xE6\xA8\xA1\xE5\x9E\x8B\"\n").config.train.output_dir, "\xE6\xA8\xA1\xE5\x9E\x8B");
  EXPECT_EQ(yaml_error("model: a\noutput_dir: caf\xE9\n"),
            "error[config/yaml] c.yaml:2:16: byte 0xE9 is not UTF-8. Save the file as UTF-8.");
  EXPECT_THAT(yaml_error(std::string("model: a\nb: c\0d\n", 15)), HasSubstr("c.yaml:2:5: NUL character"));
  EXPECT_THAT(yaml_error("model: a\x04\nmax_stepz: 1\n"), HasSubstr("control character (byte 0x04)"));
  EXPECT_THAT(yaml_error(std::string("\xFF\xFEm\0o\0", 6)), HasSubstr("not UTF-8"));
  EXPECT_THAT(bad("output_dir: \"a\\0b\"\n"), HasSubstr("NUL"));
}

// Each of these would take a naive reader's stack, memory or time.
// The time limit of the program of tests ends a reader that needs a time, or a stack, that grows faster than the text.
TEST(Yaml, BombsAreRefused) {
  const size_t size = 500000;
  std::vector<std::string> bombs = {std::string(size, '['),
                                    "model: " + std::string(size, '['),
                                    "model: " + std::string(size, '{'),
                                    "model: " + std::string(size, 'x'),
                                    "model: \"" + std::string(size, 'x') + "\"",
                                    std::string(size, 'x') + ": 1",
                                    std::string(size, '-'),
                                    std::string(size, ' '),
                                    std::string(size, '\n') + "a: b",
                                    std::string(size, '"'),
                                    std::string(size, '*'),
                                    std::string(size, '#'),
                                    std::string(size, ':')};
  std::string dashes, questions, pairs, keys, flow = "model: [";
  while (dashes.size() < size) dashes += "- ";
  while (questions.size() < size) questions += "? ";
  while (pairs.size() < size) pairs += "{a: ";
  for (int i = 0; keys.size() < size; ++i) keys += "key" + std::to_string(i) + ": 1\n";
  while (flow.size() < size) flow += "a, ";
  for (std::string* text : {&dashes, &questions, &pairs, &keys, &flow}) bombs.push_back(std::move(*text));
  for (const std::string& bomb : bombs) {
    EXPECT_THAT(yaml_error(bomb), StartsWith("error[config")) << bomb.substr(0, 20);
  }
}

TEST(Yaml, LimitsAreNamed) {
  EXPECT_THAT(yaml_error("model: " + std::string(70000, 'x')), HasSubstr("a text of 70000 bytes"));
  EXPECT_THAT(yaml_error(std::string(600000, ' ')), HasSubstr("600000 bytes, a configuration has at most"));
  EXPECT_THAT(yaml_error("a: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]"), HasSubstr("nested deeper"));
}

TEST(Json, ReadsLikeYaml) {
  const Loaded loaded = parse_config(
      "{\n \"model\": \"m\", \"train_dataset\": \"d\",\n \"learning_rate\": 1e-5, \"bf16\": false, \"max_steps\": 3,\n"
      " \"dist_config\": {\"name\": \"fsdpturbo\", \"ep_size\": 2, \"hook_modules\": [\"a\", \"b\"]}, \"dp_size\": "
      "null}",
      "c.json", {}, Command::kSft);
  EXPECT_DOUBLE_EQ(loaded.config.train.learning_rate, 1e-5);
  EXPECT_FALSE(loaded.config.train.bf16);
  EXPECT_EQ(loaded.config.dist.ep_size, 2);
  EXPECT_EQ(loaded.config.dist.hook_modules, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(loaded.positions.of("dist_config.ep_size"), "c.json:4:50");
}

TEST(Json, ErrorsHavePlaces) {
  EXPECT_THAT(json_error("{\n  \"max_steps\": 1.5\n}"), HasSubstr("c.json:2:16: max_steps is 1.5"));
  EXPECT_THAT(json_error("{\"max_stepz\": 1}"),
              HasSubstr("c.json:1:2: unknown key max_stepz. Did you mean max_steps?"));
  EXPECT_THAT(json_error("{\"max_steps\": 1, \"max_steps\": 2}"), HasSubstr("c.json:1:"));
  EXPECT_THAT(json_error("{\"max_steps\": 1,}"), HasSubstr("this is not JSON"));
  EXPECT_THAT(json_error("[1]"), HasSubstr("the file is a list"));
  EXPECT_THAT(json_error(""), HasSubstr("this is not JSON"));
  EXPECT_THAT(json_error("{\"model\": " + std::string(100000, '[')), HasSubstr("c.json:1:"));
  EXPECT_THAT(json_error("{\"bf16\": \"true\"}"), HasSubstr("expected true or false"));
}

TEST(File, ThatCannotBeRead) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("expertmesh_config_test_" + std::to_string(getpid()));
  fs::create_directories(folder / "directory.yaml");
  const auto load = [](const fs::path& path) {
    return error_of([&] { load_config(path.string(), {}, Command::kOther); });
  };
  EXPECT_THAT(load(folder / "nothing.yaml"), HasSubstr("nothing.yaml: there is no such file"));
  EXPECT_THAT(load(folder / "directory.yaml"), HasSubstr("a directory, not a file"));
  EXPECT_THAT(load("/dev/null"), HasSubstr("not a file"));
  std::ofstream(folder / "config.toml") << "model = 1\n";
  EXPECT_THAT(load(folder / "config.toml"), HasSubstr("ends in none of .yaml, .yml, .json"));
  std::ofstream(folder / "big.yaml") << std::string(600000, '#');
  EXPECT_THAT(load(folder / "big.yaml"), HasSubstr("600000 bytes"));
  std::ofstream(folder / "good.YAML") << "model: a\n";
  EXPECT_EQ(load_config((folder / "good.YAML").string(), {}, Command::kOther).config.model.path, "a");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace expertmesh::config
