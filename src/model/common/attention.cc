// SPDX-License-Identifier: Apache-2.0
#include "model/common/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>

namespace expertmesh::model {

Attention::Attention(const std::string& path, const AttentionOptions& options, std::shared_ptr<RotaryTables> rotary)
    : Module(path),
      options_(options),
      rotary_(std::move(rotary)),
      q_proj_(path + ".q_proj", options.hidden, options.heads * options.head_dim * (options.has_output_gate ? 2 : 1),
              options.has_bias),
      k_proj_(path + ".k_proj", options.hidden, options.kv_heads * options.head_dim, options.has_bias),
      v_proj_(path + ".v_proj", options.hidden, options.kv_heads * options.head_dim, options.has_bias),
      o_proj_(path + ".o_proj", options.heads * options.head_dim, options.hidden, options.has_bias),
      q_norm_(path + ".q_norm", options.head_dim, options.norm),
      k_norm_(path + ".k_norm", options.head_dim, options.norm) {
  for (Module* child :
       {static_cast<Module*>(&q_proj_), static_cast<Module*>(&k_proj_), static_cast<Module*>(&v_proj_),
        static_cast<Module*>(&o_proj_), static_cast<Module*>(&q_norm_), static_cast<Module*>(&k_norm_)}) {
    add_child(*child);
  }
}

at::Tensor Attention::rotated(const at::Tensor& heads_TND, const RmsNorm& norm, const TokenBatch& batch,
                              const ops::Operators& ops) const {
  return ops.rope(norm.forward(heads_TND, ops), batch.positions_T, rotary_->cos(), rotary_->sin());
}

at::Tensor Attention::forward(const at::Tensor& hidden_TH, const TokenBatch& batch, const ops::Operators& ops) const {
  enter();
  rotary_->cover(batch.positions_T);
  const int64_t tokens = hidden_TH.size(0), dim = options_.head_dim;
  const at::Tensor queries = q_proj_.forward(hidden_TH).view({tokens, options_.heads, -1});
  const at::Tensor q = rotated(options_.has_output_gate ? queries.narrow(2, 0, dim) : queries, q_norm_, batch, ops);
  const at::Tensor k = rotated(k_proj_.forward(hidden_TH).view({tokens, options_.kv_heads, dim}), k_norm_, batch, ops);
  const at::Tensor v = v_proj_.forward(hidden_TH).view({tokens, options_.kv_heads, dim});
  at::Tensor mixed = ops.attention(q, k, v, batch.cu_seqlens, 1.0 / std::sqrt(static_cast<double>(dim)));
  if (options_.has_output_gate) mixed = mixed * at::sigmoid(queries.narrow(2, dim, dim));
  return o_proj_.forward(mixed.reshape({tokens, options_.heads * dim}));
}

}  // namespace expertmesh::model
