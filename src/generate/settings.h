// SPDX-License-Identifier: Apache-2.0
// What a model directory says about generating with it: generation_config.json, config.json, the tokenizer.
// Errors: kModel naming file, key and value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "generate/token_choice.h"

namespace expertmesh::generate {

struct ModelSettings {
  bool samples = false;                                          // do_sample
  Sampling sampling{.temperature = 1, .top_k = 50, .top_p = 1};  // of the file, else transformers' own defaults
  std::vector<int32_t> end_ids;                                  // sorted; may be none
  std::vector<std::string> ignored;                              // keys that would change the text and are not built
};

// `model_config`: of <model_dir>/config.json. `tokenizer`: nullptr where the model has none.
ModelSettings read_model_settings(const base::FileSystem& fs, const std::string& model_dir,
                                  const base::Json& model_config, int64_t vocabulary_rows,
                                  const data::Tokenizer* tokenizer);

// Whether config.json says that the weights are bf16.
bool has_bf16_weights(const base::Json& model_config, const std::string& where);

// What the user asked for beside the model's settings; values are checked by then.
struct SamplingWishes {
  bool greedy = false;
  std::optional<double> temperature = {}, top_p = {};
  std::optional<int64_t> top_k = {};
};

// Each wish in place of the model's value. Greedy without any wish where the model does not sample.
Sampling choose_sampling(const ModelSettings& settings, const SamplingWishes& wishes);

// "greedy", or "temperature 0.6, top-k 20, top-p 0.95": for the user.
std::string describe(const Sampling& sampling);

}  // namespace expertmesh::generate
