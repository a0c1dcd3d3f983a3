// SPDX-License-Identifier: Apache-2.0
// What the config.json of several models say in the same words. Errors: kModel naming the key.
#pragma once

#include <cstdint>
#include <string>

#include "model/common/json_fields.h"

namespace expertmesh::model {

constexpr int64_t kMostLayers = 4096;

struct AttentionSizes {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  bool has_bias = false;
};
// Without `head_dim` it is hidden / heads.
AttentionSizes read_attention_sizes(const JsonFields& fields, int64_t hidden);

struct ExpertSizes {
  int64_t experts = 0;
  int64_t experts_per_token = 0;  // at most experts
  int64_t intermediate = 0;
};
// `num_experts`, or `num_local_experts` as transformers 5 may spell it.
ExpertSizes read_expert_sizes(const JsonFields& fields);

int64_t read_max_positions(const JsonFields& fields);

// "float32", "bfloat16", "float16", or empty.
std::string read_storage_dtype(const JsonFields& fields);

// What would change the computation and is not built: other activations, sliding windows, dropout, quantized weights.
void refuse_unsupported(const JsonFields& fields);

}  // namespace expertmesh::model
