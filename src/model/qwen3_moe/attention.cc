// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_moe/attention.h"

#include <cmath>

namespace expertmesh::model {

Qwen3MoeAttention::Qwen3MoeAttention(const std::string& path, const Qwen3MoeConfig& config,
                                     std::shared_ptr<RotaryTables> rotary)
    : Module(path),
      head_dim_(config.head_dim),
      rotary_(std::move(rotary)),
      q_proj_(path + ".q_proj", config.hidden_size, config.num_heads * config.head_dim, config.attention_bias),
      k_proj_(path + ".k_proj", config.hidden_size, config.num_kv_heads * config.head_dim, config.attention_bias),
      v_proj_(path + ".v_proj", config.hidden_size, config.num_kv_heads * config.head_dim, config.attention_bias),
      o_proj_(path + ".o_proj", config.num_heads * config.head_dim, config.hidden_size, config.attention_bias),
      q_norm_(path + ".q_norm", config.head_dim, config.rms_norm_eps),
      k_norm_(path + ".k_norm", config.head_dim, config.rms_norm_eps) {
  for (Module* child :
       {static_cast<Module*>(&q_proj_), static_cast<Module*>(&k_proj_), static_cast<Module*>(&v_proj_),
        static_cast<Module*>(&o_proj_), static_cast<Module*>(&q_norm_), static_cast<Module*>(&k_norm_)}) {
    add_child(*child);
  }
}

at::Tensor Qwen3MoeAttention::rotated_heads(const at::Tensor& projected, const RmsNorm& norm, const TokenBatch& batch,
                                            const ops::Operators& ops) const {
  const at::Tensor heads = projected.view({projected.size(0), -1, head_dim_});
  return ops.rope(norm.forward(heads, ops), batch.positions_T, rotary_->cos(), rotary_->sin());
}

at::Tensor Qwen3MoeAttention::forward(const at::Tensor& hidden_TH, const TokenBatch& batch,
                                      const ops::Operators& ops) const {
  enter();
  rotary_->cover(batch.positions_T);
  const at::Tensor q = rotated_heads(q_proj_.forward(hidden_TH), q_norm_, batch, ops);
  const at::Tensor k = rotated_heads(k_proj_.forward(hidden_TH), k_norm_, batch, ops);
  const at::Tensor v = v_proj_.forward(hidden_TH).view({hidden_TH.size(0), -1, head_dim_});
  const at::Tensor mixed = ops.attention(q, k, v, batch.cu_seqlens, 1.0 / std::sqrt(static_cast<double>(head_dim_)));
  return o_proj_.forward(mixed.reshape({hidden_TH.size(0), -1}));
}

}  // namespace expertmesh::model
