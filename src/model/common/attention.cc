// SPDX-License-Identifier: Apache-2.0
#include "model/common/attention.h"

#include <cmath>
#include <vector>

#include "model/common/kv_cache.h"

namespace expertmesh::model {

Attention::Attention(const std::string& path, const AttentionOptions& options, std::shared_ptr<RotaryTables> rotary)
    : Module(path),
      options_(options),
      rotary_(std::move(rotary)),
      q_proj_(path + ".q_proj", options.hidden,
              options.sizes.heads * options.sizes.head_dim * (options.has_output_gate ? 2 : 1), options.sizes.has_bias),
      k_proj_(path + ".k_proj", options.hidden, options.sizes.kv_heads * options.sizes.head_dim,
              options.sizes.has_bias),
      v_proj_(path + ".v_proj", options.hidden, options.sizes.kv_heads * options.sizes.head_dim,
              options.sizes.has_bias),
      o_proj_(path + ".o_proj", options.sizes.heads * options.sizes.head_dim, options.hidden, options.sizes.has_bias),
      q_norm_(path + ".q_norm", options.sizes.head_dim, options.norm),
      k_norm_(path + ".k_norm", options.sizes.head_dim, options.norm) {
  for (Module* child :
       {static_cast<Module*>(&q_proj_), static_cast<Module*>(&k_proj_), static_cast<Module*>(&v_proj_),
        static_cast<Module*>(&o_proj_), static_cast<Module*>(&q_norm_), static_cast<Module*>(&k_norm_)}) {
    add_child(*child);
  }
}

at::Tensor Attention::rotated(const at::Tensor& heads_TND, const RmsNorm& norm, const RotaryAngles& angles,
                              const ops::Operators& ops) {
  return ops.rope(norm.forward(heads_TND, ops), angles.positions_T, angles.cos_PR, angles.sin_PR);
}

at::Tensor Attention::mix(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                          const LayerContext& context) const {
  const ops::Operators& ops = *context.runtime.ops;
  const double scale = 1.0 / std::sqrt(static_cast<double>(options_.sizes.head_dim));
  const bool is_whole = all_begin_here(context.caches);
  keep_keys_and_values(k_TMD, v_TMD, context);
  if (is_whole) return ops.attention(q_TND, k_TMD, v_TMD, context.batch.cu_seqlens, scale);
  return attend_to_caches(q_TND, context, scale);
}

at::Tensor Attention::forward(const at::Tensor& hidden_TH, const LayerContext& context) const {
  enter();
  const ops::Operators& ops = *context.runtime.ops;
  const RotaryAngles angles = rotary_->angles(context.batch.positions_T, context.batch.axis_positions_AT);
  const int64_t tokens = hidden_TH.size(0), dim = options_.sizes.head_dim;
  // No -1 for the width: it has no meaning where a rank has no tokens.
  const at::Tensor queries =
      q_proj_.forward(hidden_TH).view({tokens, options_.sizes.heads, options_.has_output_gate ? 2 * dim : dim});
  // The queries and, where there is one, their gate.
  const auto parts = options_.has_output_gate ? queries.split(dim, 2) : std::vector<at::Tensor>{queries};
  const at::Tensor q = rotated(parts[0], q_norm_, angles, ops);
  const at::Tensor k =
      rotated(k_proj_.forward(hidden_TH).view({tokens, options_.sizes.kv_heads, dim}), k_norm_, angles, ops);
  const at::Tensor v = v_proj_.forward(hidden_TH).view({tokens, options_.sizes.kv_heads, dim});
  at::Tensor mixed = mix(q, k, v, context);
  if (options_.has_output_gate) mixed = ops.sigmoid_gate(mixed, parts[1]);
  return o_proj_.forward(mixed.reshape({tokens, options_.sizes.heads * dim}));
}

}  // namespace expertmesh::model
