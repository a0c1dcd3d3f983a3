// SPDX-License-Identifier: Apache-2.0
// What config.json says of a Qwen3-MoE model, checked. Keys and defaults are those of transformers (4.51 to 5.x; both
// `num_experts` and `num_local_experts`), except that the sizes that shape every tensor have no default: a file without
// them is broken. Keys that do not change the computation are ignored; those that would and are not built are errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/common/config_parts.h"
#include "model/common/rope.h"

namespace expertmesh::model {

struct Qwen3MoeConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t num_layers = 0;
  AttentionSizes attention;
  ExpertSizes experts;
  double rms_norm_eps = 1e-6;
  bool norm_topk_prob = false;
  bool tie_word_embeddings = false;
  std::vector<bool> is_moe_layer;  // one a layer
  RopeConfig rope;
  std::string storage_dtype;  // "float32", "bfloat16", "float16", or empty
};

// Throws kModel naming the key that is wrong; `where` is the file.
Qwen3MoeConfig read_qwen3_moe_config(const base::Json& config, const std::string& where);

}  // namespace expertmesh::model
