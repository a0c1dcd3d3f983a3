// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_load.h"

#include <cstring>

namespace expertmesh::data {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";

std::string_view without_byte_order_mark(std::string_view text) {
  return text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text;
}

base::Json parse(std::string_view text, const std::string& name) {
  try {
    return base::parse_json(without_byte_order_mark(text));
  } catch (const base::JsonError& error) {
    throw base::make_error(base::Code::kModel, "data/tokenizer", "not valid JSON: {}", error.message)
        .at(fmt::format("{}:{}:{}", name, error.line, error.column));
  }
}

// Reads a file of the directory; nothing where it is not there and may be missing.
std::optional<std::string> read_file(const base::FileSystem& files, const std::string& path, bool required) {
  const auto refuse = [&](std::string text) -> base::Error {
    return base::Error(base::Code::kModel, "data/tokenizer", std::move(text)).at(path);
  };
  const base::FileStat stat = files.stat(path);
  if (!stat.exists) {
    if (!required) return std::nullopt;
    throw refuse("there is no such file").hint("A model directory needs its tokenizer wherever rows hold text.");
  }
  if (!stat.is_regular) throw refuse("is not a regular file");
  if (stat.size > kMaxFileBytes) {
    throw refuse(fmt::format("has {} bytes; at most {} are read", stat.size, kMaxFileBytes));
  }
  return files.read_all(path);
}

// Two 64-bit sums over eight bytes at a time: names the content for caches, guards against nobody.
class Fingerprint {
 public:
  void add(std::string_view text) {
    mix(text.size());
    size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) {
      uint64_t word;
      std::memcpy(&word, text.data() + at, sizeof word);
      mix(word);
    }
    uint64_t rest = 0;
    if (at < text.size()) std::memcpy(&rest, text.data() + at, text.size() - at);
    mix(rest);
  }
  std::string text() const { return fmt::format("{:016x}{:016x}", a_, b_); }

 private:
  void mix(uint64_t word) {
    a_ = (a_ ^ word) * 0x9e3779b97f4a7c15U;
    a_ ^= a_ >> 32;
    b_ = (b_ + word) * 0xc2b2ae3d27d4eb4fU;
    b_ ^= b_ >> 29;
  }
  uint64_t a_ = 0x243f6a8885a308d3U, b_ = 0x13198a2e03707344U;
};

}  // namespace

TokenizerSpec parse_tokenizer_spec(std::string_view text, const std::string& name, std::string_view config,
                                   const std::string& config_name) {
  TokenizerSpec spec;
  {
    const base::Json json = parse(text, name);
    const JsonPlace root(&json, name, "");
    root.object();
    read_pipeline(root, spec);
    read_bpe_model(root["model"], spec);
    read_added_tokens(root["added_tokens"], spec);
  }
  if (!config.empty()) {
    const base::Json json = parse(config, config_name);
    read_tokenizer_config(JsonPlace(&json, config_name, ""), spec);
  }
  if (const auto clash = spec.vocabulary.freeze()) {
    throw base::make_error(base::Code::kModel, "data/tokenizer", "tokens {} and {} have the same id {}",
                           base::json_quote(clash->first), base::json_quote(clash->second), clash->id)
        .at(name);
  }
  Fingerprint fingerprint;
  fingerprint.add(text);
  fingerprint.add(config);
  spec.fingerprint = fingerprint.text();
  return spec;
}

TokenizerSpec load_tokenizer_spec(const base::FileSystem& files, const std::string& directory) {
  const std::string path = base::join_path(directory, kTokenizerFile);
  const std::string config_path = base::join_path(directory, kConfigFile);
  const auto text = read_file(files, path, true);
  const auto config = read_file(files, config_path, false);
  TokenizerSpec spec = parse_tokenizer_spec(*text, path, config.value_or(""), config_path);
  if (auto jinja = read_file(files, base::join_path(directory, kTemplateFile), false)) {
    spec.chat_template = std::move(*jinja);
  }
  return spec;
}

}  // namespace expertmesh::data
