// SPDX-License-Identifier: Apache-2.0
// Models for `expertmesh init`: small ones to try things with, and the published shape. All with Qwen3's vocabulary but
// for `tiny`, which needs no tokenizer.
#include <array>

#include "model/qwen3_moe/qwen3_moe.h"

namespace expertmesh::model {
namespace {

using base::Json;

struct Shape {
  int64_t vocab, hidden, intermediate, moe_intermediate, layers, heads, kv_heads, head_dim, experts, experts_per_token;
  bool tied;
  int64_t max_positions = 32768;
  double rope_theta = 1000000.0;
};

Json config_of(const Shape& shape) {
  constexpr int64_t kEndOfText = 151643, kImEnd = 151645;
  const bool has_tokenizer = shape.vocab > kImEnd;
  return Json(Json::Object{
      {"architectures", Json::Array{"Qwen3MoeForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", has_tokenizer ? Json(kEndOfText) : Json(nullptr)},
      {"decoder_sparse_step", 1},
      {"eos_token_id", has_tokenizer ? Json(kImEnd) : Json(nullptr)},
      {"head_dim", shape.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", shape.hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", shape.intermediate},
      {"max_position_embeddings", shape.max_positions},
      {"mlp_only_layers", Json::Array{}},
      {"model_type", "qwen3_moe"},
      {"moe_intermediate_size", shape.moe_intermediate},
      {"norm_topk_prob", true},
      {"num_attention_heads", shape.heads},
      {"num_experts", shape.experts},
      {"num_experts_per_tok", shape.experts_per_token},
      {"num_hidden_layers", shape.layers},
      {"num_key_value_heads", shape.kv_heads},
      {"rms_norm_eps", 1e-6},
      {"rope_scaling", nullptr},
      {"rope_theta", shape.rope_theta},
      {"router_aux_loss_coef", 0.001},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", shape.tied},
      {"use_sliding_window", false},
      {"vocab_size", shape.vocab},
  });
}

Json tiny() {
  return config_of({.vocab = 512,
                    .hidden = 64,
                    .intermediate = 96,
                    .moe_intermediate = 32,
                    .layers = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .experts = 8,
                    .experts_per_token = 2,
                    .tied = false});
}

Json quickstart() {
  return config_of({.vocab = 151936,
                    .hidden = 256,
                    .intermediate = 512,
                    .moe_intermediate = 128,
                    .layers = 8,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .experts = 32,
                    .experts_per_token = 4,
                    .tied = true});
}

Json bench() {
  return config_of({.vocab = 151936,
                    .hidden = 512,
                    .intermediate = 1024,
                    .moe_intermediate = 192,
                    .layers = 8,
                    .heads = 8,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .experts = 64,
                    .experts_per_token = 8,
                    .tied = true});
}

Json published() {
  return config_of({.vocab = 151936,
                    .hidden = 2048,
                    .intermediate = 6144,
                    .moe_intermediate = 768,
                    .layers = 48,
                    .heads = 32,
                    .kv_heads = 4,
                    .head_dim = 128,
                    .experts = 128,
                    .experts_per_token = 8,
                    .tied = false,
                    .max_positions = 40960});
}

}  // namespace

std::span<const Preset> qwen3_moe_presets() {
  static constexpr std::array kPresets = {
      Preset{"qwen3-moe-tiny", "0.2M parameters, 512 ids: for tests", tiny},
      Preset{"qwen3-moe-quickstart", "66M parameters, 44M active: the quick start", quickstart},
      Preset{"qwen3-moe-bench", "234M parameters, 102M active: benchmarks", bench},
      Preset{"qwen3-moe-30b-a3b", "30.5B parameters, 3.3B active: the shape of Qwen3-30B-A3B", published},
  };
  return kPresets;
}

}  // namespace expertmesh::model
