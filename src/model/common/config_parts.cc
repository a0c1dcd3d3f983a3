// SPDX-License-Identifier: Apache-2.0
#include "model/common/config_parts.h"

namespace expertmesh::model {
namespace {

constexpr int64_t kMostExperts = 65536;

int64_t read_num_experts(const JsonFields& fields) {
  constexpr IntRange kRange = {1, kMostExperts};
  if (!fields.has("num_local_experts")) return fields.integer("num_experts", {}, kRange);
  const int64_t experts = fields.integer("num_local_experts", {}, kRange);
  if (fields.integer("num_experts", experts, kRange) != experts) {
    throw fields.error("num_experts", fmt::format("num_local_experts is {}", experts)).hint("They mean the same.");
  }
  return experts;
}

}  // namespace

AttentionSizes read_attention_sizes(const JsonFields& fields, int64_t hidden) {
  AttentionSizes sizes;
  sizes.heads = fields.integer("num_attention_heads");
  sizes.kv_heads = fields.integer("num_key_value_heads");
  if (sizes.heads % sizes.kv_heads != 0) {
    throw fields.error("num_key_value_heads",
                       fmt::format("num_attention_heads {} is no multiple of {}", sizes.heads, sizes.kv_heads));
  }
  if (!fields.has("head_dim") && hidden % sizes.heads != 0) {
    throw fields.error("head_dim",
                       fmt::format("hidden_size {} does not divide by num_attention_heads {}", hidden, sizes.heads));
  }
  sizes.head_dim = fields.integer("head_dim", hidden / sizes.heads);
  if (sizes.head_dim % 2 != 0) throw fields.error("head_dim", "rotary embedding needs an even number");
  sizes.has_bias = fields.boolean("attention_bias", false);
  return sizes;
}

ExpertSizes read_expert_sizes(const JsonFields& fields) {
  ExpertSizes sizes;
  sizes.experts = read_num_experts(fields);
  sizes.experts_per_token = fields.integer("num_experts_per_tok");
  if (sizes.experts_per_token > sizes.experts) {
    throw fields.error("num_experts_per_tok", fmt::format("there are {} experts (num_experts)", sizes.experts));
  }
  sizes.intermediate = fields.integer("moe_intermediate_size");
  return sizes;
}

int64_t read_max_positions(const JsonFields& fields) {
  return fields.integer("max_position_embeddings", 32768, {1, int64_t{1} << 30});
}

std::string read_storage_dtype(const JsonFields& fields) {
  const std::string dtype = fields.text("dtype", fields.text("torch_dtype", ""));
  return dtype.starts_with("torch.") ? dtype.substr(6) : dtype;
}

void refuse_unsupported(const JsonFields& fields) {
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    throw fields.error("hidden_act", "the only activation that is built is silu");
  }
  if (fields.boolean("use_sliding_window", false)) {
    throw fields.error("use_sliding_window", "sliding-window attention is not built")
        .hint("Set it to false where the model was trained with full attention.");
  }
  if (fields.number("attention_dropout", 0.0) != 0.0) {
    throw fields.error("attention_dropout", "dropout is not built").hint("Set it to 0.");
  }
  if (fields.has("quantization_config")) {
    throw fields.error("quantization_config", "quantized models are not supported")
        .hint("Use the float version of the model.");
  }
}

}  // namespace expertmesh::model
