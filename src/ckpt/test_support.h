// SPDX-License-Identifier: Apache-2.0
// For the tests of this room: a directory that goes away, the weight table of the small Qwen3-MoE models under
// tests/cases/weights/models, and the rules of expected.json.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "ckpt/load_plan.h"

namespace expertmesh::ckpt::test {

inline std::string cases_path(const std::string& name) {
  return std::string(EXPERTMESH_SOURCE_DIR) + "/tests/cases/weights/" + name;
}

inline base::FileSystem& file_system() {
  static const auto fs = base::make_posix_file_system(base::Code::kModel);
  return *fs;
}

class TempDir {
 public:
  TempDir() {
    // In memory where there is such a place: syncing hundreds of small saves to a disk takes minutes.
    const bool in_memory = ::access("/dev/shm", W_OK) == 0;
    std::string pattern = (in_memory ? std::string("/dev/shm") : ::testing::TempDir()) + "/expertmesh_ckpt_XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { file_system().remove_tree(root_); }
  const std::string& path() const { return root_; }
  std::string path(const std::string& name) const { return base::join_path(root_, name); }

 private:
  std::string root_;
};

inline void write(const std::string& path, std::string_view text) {
  const auto file = file_system().create(path);
  file->append(text);
  file->close();
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename Call>
std::optional<base::Error> error_of(Call&& call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error;
  }
  return std::nullopt;
}

// The table of a qwen3_moe config.json; all layers have experts.
inline WeightTable qwen3_table(const base::Json& config) {
  const auto get = [&](const char* key) { return *config.find(key)->try_int64(); };
  const int64_t hidden = get("hidden_size"), head = get("head_dim"), vocab = get("vocab_size");
  const int64_t q = get("num_attention_heads") * head, kv = get("num_key_value_heads") * head;
  WeightTable table;
  table.add("model.embed_tokens.weight", {vocab, hidden});
  for (int64_t layer = 0; layer < get("num_hidden_layers"); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    table.add(prefix + "input_layernorm.weight", {hidden});
    table.add(prefix + "self_attn.q_proj.weight", {q, hidden});
    table.add(prefix + "self_attn.k_proj.weight", {kv, hidden});
    table.add(prefix + "self_attn.v_proj.weight", {kv, hidden});
    table.add(prefix + "self_attn.o_proj.weight", {hidden, q});
    table.add(prefix + "self_attn.q_norm.weight", {head});
    table.add(prefix + "self_attn.k_norm.weight", {head});
    table.add(prefix + "post_attention_layernorm.weight", {hidden});
    table.add(prefix + "mlp.gate.weight", {get("num_experts"), hidden});
    table.add_experts(prefix + "mlp.experts", get("num_experts"), get("moe_intermediate_size"), hidden);
  }
  table.add("model.norm.weight", {hidden});
  if (*config.find("tie_word_embeddings")->try_bool()) {
    table.add_alias("lm_head.weight", "model.embed_tokens.weight");
  } else {
    table.add("lm_head.weight", {vocab, hidden});
  }
  table.pass_through("model.visual.");
  table.pass_through("mtp.");
  return table;
}

inline WeightTable table_of(const std::string& model_directory) {
  return qwen3_table(base::parse_json(file_system().read_all(model_directory + "/config.json")));
}

inline std::shared_ptr<const ModelFiles> open_model(const std::string& directory) {
  return std::make_shared<const ModelFiles>(file_system(), directory);
}

inline std::vector<float> load_all(const LoadPlan& plan, const std::string& name) {
  const Slice whole = Slice::whole(plan.table().entry(name).shape);
  std::vector<float> values(static_cast<size_t>(whole.numel()));
  plan.load_slice(name, whole, values.data(), DType::kF32);
  return values;
}

inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Checks an error against the "error" member of expected.json. `path` is the file or directory that was given.
inline void expect_case(const base::Json& wanted, const std::optional<base::Error>& error, const std::string& path) {
  ASSERT_TRUE(error.has_value()) << path << " was accepted";
  EXPECT_EQ(static_cast<int>(error->code()), *wanted.find("exit")->try_int64());
  const std::string full = lower(error->text());
  std::string cut = full;
  for (size_t at = 0; (at = cut.find(lower(path))) != std::string::npos;) cut.erase(at, path.size());
  const std::string name = path.substr(path.rfind('/') + 1);
  const auto holds = [&](const base::Json& entry) {
    const std::string word = lower(*entry.try_string());
    const bool names_file = word.find(lower(name)) != std::string::npos || word.ends_with(".safetensors");
    return (names_file ? full : cut).find(word) != std::string::npos;
  };
  for (const base::Json& entry : *wanted.find("contains")->try_array()) {
    bool found = false;
    if (const auto* any = entry.try_array()) {
      for (const base::Json& word : *any) found = found || holds(word);
    } else {
      found = holds(entry);
    }
    EXPECT_TRUE(found) << base::dump_json(entry) << " is not in: " << error->text();
  }
}

}  // namespace expertmesh::ckpt::test
