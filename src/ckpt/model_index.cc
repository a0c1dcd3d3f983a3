// SPDX-License-Identifier: Apache-2.0
#include "ckpt/model_index.h"

#include <algorithm>
#include <map>

#include "base/json_events.h"
#include "ckpt/safetensors.h"

namespace expertmesh::ckpt {
namespace {

using base::Json;
using base::JsonRefusal;

class IndexReader final : public base::JsonEvents {
 public:
  void on_begin(bool is_object) override {
    if (depth_ == 0 && !is_object) throw JsonRefusal{"the index is a list, not an object"};
    if (depth_ == 1 && key_ == "weight_map") {
      if (!is_object) throw JsonRefusal{"weight_map is a list, not an object"};
      if (has_map_) throw JsonRefusal{"weight_map is there twice"};
      has_map_ = true;
    }
    if (depth_ == 2 && key_ == "weight_map") throw not_a_file(is_object ? "an object" : "a list");
    ++depth_;
  }

  void on_end(bool /*is_object*/) override { --depth_; }

  void on_key(std::string_view key) override {
    if (depth_ == 1) key_ = key;
    if (depth_ == 2) inner_key_ = key;
  }

  void on_scalar(Json value) override {
    if (depth_ == 0) throw JsonRefusal{fmt::format("the index is {}, not an object", value.kind())};
    if (depth_ == 1 && key_ == "weight_map") {
      throw JsonRefusal{fmt::format("weight_map is {}, not an object", value.kind())};
    }
    if (depth_ == 2 && key_ == "weight_map") add_tensor(value);
    if (depth_ == 2 && key_ == "metadata" && inner_key_ == "total_size") {
      index_.total_size = value.try_int64().value_or(-1);
    }
  }

  ModelIndex finish() {
    if (index_.files.empty()) throw JsonRefusal{has_map_ ? "weight_map is empty" : "weight_map is missing"};
    std::sort(index_.tensors.begin(), index_.tensors.end());
    const auto twice = std::adjacent_find(index_.tensors.begin(), index_.tensors.end(),
                                          [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != index_.tensors.end()) {
      throw JsonRefusal{fmt::format("tensor {} is there twice", display_name(twice->first))};
    }
    return std::move(index_);
  }

 private:
  JsonRefusal not_a_file(std::string_view kind) const {
    return {fmt::format("weight_map of {} is {}, not a file name", display_name(inner_key_), kind)};
  }

  void add_tensor(const Json& value) {
    const std::string* file = value.try_string();
    if (file == nullptr) throw not_a_file(value.kind());
    const auto [at, is_new] = positions_.emplace(*file, static_cast<uint32_t>(index_.files.size()));
    if (is_new) {
      check_name(*file);
      index_.files.push_back(*file);
    }
    index_.tensors.emplace_back(inner_key_, at->second);
  }

  void check_name(const std::string& file) const {
    const bool is_inside = !file.empty() && file.front() != '/' && file.find('\0') == std::string::npos &&
                           ("/" + file + "/").find("/../") == std::string::npos;
    if (!is_inside) {
      throw JsonRefusal{fmt::format("tensor {} is said to be in {}, which is outside of the model directory",
                                    display_name(inner_key_), display_name(file))};
    }
    if (!file.ends_with(".safetensors")) {
      throw JsonRefusal{fmt::format("tensor {} is said to be in {}, which is no .safetensors file",
                                    display_name(inner_key_), display_name(file))};
    }
  }

  ModelIndex index_;
  std::map<std::string, uint32_t> positions_;
  std::string key_, inner_key_;
  int depth_ = 0;
  bool has_map_ = false;
};

}  // namespace

ModelIndex read_model_index(const base::FileSystem& fs, const std::string& path) {
  const std::string text = fs.read_all(path);
  const auto fail = [&](const std::string& message, const std::string& where) {
    return std::move(base::Error(fs.code(), "ckpt/index", message).at(where));
  };
  IndexReader reader;
  try {
    base::parse_json_events(text, {.max_depth = 8}, reader);
    return reader.finish();
  } catch (const base::JsonError& error) {
    throw fail("bad index (JSON): " + error.message, fmt::format("{}:{}:{}", path, error.line, error.column));
  } catch (const JsonRefusal& refusal) {
    throw fail("bad index: " + refusal.message, path);
  }
}

}  // namespace expertmesh::ckpt
