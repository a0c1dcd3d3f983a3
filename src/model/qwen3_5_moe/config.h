// SPDX-License-Identifier: Apache-2.0
// What config.json says of a Qwen3.5-MoE model, checked: `qwen3_5_moe`, whose text model is described under
// `text_config` (beside a vision tower that is not computed), or `qwen3_5_moe_text`, which is a text model alone. Keys
// and defaults are those of transformers 5, except that the sizes that shape every tensor have no default. Keys that do
// not change the computation are ignored; those that would and are not built are errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/common/config_parts.h"
#include "model/common/rope.h"

namespace expertmesh::model {

struct GatedDeltaSizes {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  int64_t conv_taps = 0;
};

struct Qwen3_5MoeConfig {
  std::string prefix;  // of the text model's names: "model.language_model" or "model"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  AttentionSizes attention;  // of full attention layers
  GatedDeltaSizes delta;     // of the others
  ExpertSizes experts;
  int64_t shared_intermediate = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  std::vector<bool> is_full_attention;  // one a layer
  RopeConfig rope;
  std::vector<int64_t> mrope_section;  // time, height, width; or empty
  std::string storage_dtype;           // "float32", "bfloat16", "float16", or empty
};

// Throws kModel naming the key that is wrong; `where` is the file.
Qwen3_5MoeConfig read_qwen3_5_moe_config(const base::Json& config, const std::string& where);

}  // namespace expertmesh::model
