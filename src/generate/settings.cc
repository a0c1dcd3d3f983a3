// SPDX-License-Identifier: Apache-2.0
#include "generate/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/common/config_parts.h"
#include "model/common/json_fields.h"
#include "train/job.h"

namespace expertmesh::generate {
namespace {

using base::Json;
using model::JsonFields;

// Keys of generation_config.json that make another text than ours, unless they have the value that switches them off.
struct Unbuilt {
  std::string_view key;
  double off;
};
constexpr std::array<Unbuilt, 11> kUnbuilt{{{"repetition_penalty", 1},
                                            {"min_p", 0},
                                            {"typical_p", 1},
                                            {"epsilon_cutoff", 0},
                                            {"eta_cutoff", 0},
                                            {"no_repeat_ngram_size", 0},
                                            {"num_beams", 1},
                                            {"penalty_alpha", 0},
                                            {"min_new_tokens", 0},
                                            {"min_length", 0},
                                            {"guidance_scale", 1}}};

std::vector<std::string> ignored_keys(const JsonFields& fields) {
  std::vector<std::string> keys;
  for (const auto& [key, off] : kUnbuilt) {
    if (fields.number(key, off) != off) keys.emplace_back(key);
  }
  for (const std::string_view key : {"bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
                                     "forced_bos_token_id", "forced_eos_token_id", "stop_strings"}) {
    if (fields.has(key)) keys.emplace_back(key);
  }
  return keys;
}

void read_sampling(const JsonFields& fields, ModelSettings& settings) {
  Sampling& sampling = settings.sampling;
  settings.samples = fields.boolean("do_sample", false);
  sampling.temperature = fields.number("temperature", sampling.temperature);
  sampling.top_k = fields.integer("top_k", sampling.top_k, {0, int64_t{1} << 30});
  sampling.top_p = fields.number("top_p", sampling.top_p);
  if (!temperature_fault(sampling.temperature).empty()) throw fields.error("temperature", "0 is the least");
  if (!top_p_fault(sampling.top_p).empty()) throw fields.error("top_p", "it is above 0 and at most 1");
}

// One id or a list; nothing where the key is absent, null or empty.
std::vector<int32_t> read_end_ids(const JsonFields& fields, int64_t vocabulary_rows) {
  constexpr std::string_view kKey = "eos_token_id";
  const model::IntRange range{0, vocabulary_rows - 1};
  const Json* value = fields.find(kKey);
  std::vector<int64_t> ids;
  if (value != nullptr && value->is_array()) {
    ids = fields.integers(kKey, range);
  } else if (value != nullptr) {
    ids.push_back(fields.integer(kKey, {}, range));
  }
  return {ids.begin(), ids.end()};
}

// A model with several parts keeps the text model's ids with its other sizes.
std::vector<int32_t> read_config_end_ids(const JsonFields& config, int64_t vocabulary_rows) {
  std::vector<int32_t> ids = read_end_ids(config, vocabulary_rows);
  if (ids.empty() && config.has("text_config")) ids = read_end_ids(config.object("text_config"), vocabulary_rows);
  return ids;
}

}  // namespace

ModelSettings read_model_settings(const base::FileSystem& fs, const std::string& model_dir, const Json& model_config,
                                  int64_t vocabulary_rows, const data::Tokenizer* tokenizer) {
  ModelSettings settings;
  const std::string path = base::join_path(model_dir, "generation_config.json");
  if (fs.stat(path).exists) {
    const Json json = train::read_config_json(path);
    const JsonFields fields(json, path);
    read_sampling(fields, settings);
    settings.ignored = ignored_keys(fields);
    settings.end_ids = read_end_ids(fields, vocabulary_rows);
  }
  if (settings.end_ids.empty()) {
    settings.end_ids =
        read_config_end_ids(JsonFields(model_config, base::join_path(model_dir, "config.json")), vocabulary_rows);
  }
  if (settings.end_ids.empty() && tokenizer != nullptr) {
    if (const auto id = tokenizer->eos_id()) settings.end_ids.push_back(*id);
  }
  std::sort(settings.end_ids.begin(), settings.end_ids.end());
  settings.end_ids.erase(std::unique(settings.end_ids.begin(), settings.end_ids.end()), settings.end_ids.end());
  return settings;
}

bool has_bf16_weights(const Json& model_config, const std::string& where) {
  const JsonFields config(model_config, where);
  std::string dtype = model::read_storage_dtype(config);
  if (dtype.empty() && config.has("text_config")) dtype = model::read_storage_dtype(config.object("text_config"));
  return dtype == "bfloat16";
}

Sampling choose_sampling(const ModelSettings& settings, const SamplingWishes& wishes) {
  const bool has_wish = wishes.temperature || wishes.top_k || wishes.top_p;
  if (wishes.greedy || !(settings.samples || has_wish)) return {};
  return {.temperature = wishes.temperature.value_or(settings.sampling.temperature),
          .top_k = wishes.top_k.value_or(settings.sampling.top_k),
          .top_p = wishes.top_p.value_or(settings.sampling.top_p)};
}

std::string describe(const Sampling& sampling) {
  if (sampling.is_greedy()) return "greedy";
  std::string text = fmt::format("temperature {}", sampling.temperature);
  if (sampling.top_k > 0) text += fmt::format(", top-k {}", sampling.top_k);
  if (sampling.top_p < 1) text += fmt::format(", top-p {}", sampling.top_p);
  return text;
}

}  // namespace expertmesh::generate
