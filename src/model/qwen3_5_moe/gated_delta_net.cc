// SPDX-License-Identifier: Apache-2.0
#include "model/qwen3_5_moe/gated_delta_net.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

namespace expertmesh::model {
namespace {

int64_t key_width(const GatedDeltaSizes& sizes) { return sizes.key_heads * sizes.key_head_dim; }
int64_t value_width(const GatedDeltaSizes& sizes) { return sizes.value_heads * sizes.value_head_dim; }
int64_t channels(const GatedDeltaSizes& sizes) { return 2 * key_width(sizes) + value_width(sizes); }

// Columns [begin, begin + heads * dim) as heads.
at::Tensor heads_of(const at::Tensor& mixed_TC, int64_t begin, int64_t heads, int64_t dim) {
  return mixed_TC.narrow(1, begin, heads * dim).unflatten(1, {heads, dim});
}

// One state of every document, where they have any: documents that begin here start from zeros.
at::Tensor states_of(std::span<LayerCache* const> caches, at::Tensor LayerCache::* state) {
  std::vector<at::Tensor> states;
  at::Tensor some;
  for (const LayerCache* cache : caches) {
    states.push_back(cache->*state);
    if (states.back().defined()) some = states.back();
  }
  if (!some.defined()) return {};
  for (at::Tensor& one : states) {
    if (!one.defined()) one = at::zeros_like(some);
  }
  return states.size() == 1 ? some.unsqueeze(0) : at::stack(states);
}

void keep_states(std::span<LayerCache* const> caches, at::Tensor LayerCache::* state, const at::Tensor& states_B) {
  for (size_t d = 0; d < caches.size(); ++d) caches[d]->*state = states_B.select(0, static_cast<int64_t>(d));
}

// A chunk costs as much as a full one however few of its tokens are there.
bool has_few_tokens(const TokenBatch& batch, int64_t chunk_size) {
  const auto& cu = batch.cu_seqlens;
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    if (cu[d + 1] - cu[d] > chunk_size / 8) return false;
  }
  return true;
}

}  // namespace

CausalConv::CausalConv(std::string path, int64_t channels, int64_t taps)
    : Module(std::move(path)), weight_(add_parameter("weight", {channels, 1, taps})) {}

at::Tensor CausalConv::forward(const at::Tensor& x_TC, const LayerContext& context) const {
  enter();
  const ops::CausalConvResult result = context.runtime.ops->causal_conv1d_silu(
      {.x_TC = x_TC,
       .weight_CW = weight_.value().squeeze(1),
       .cu_seqlens = context.batch.cu_seqlens,
       .initial_state_BCW = states_of(context.caches, &LayerCache::conv_state_CW),
       .needs_final_state = !context.caches.empty()});
  if (!context.caches.empty()) keep_states(context.caches, &LayerCache::conv_state_CW, result.final_state_BCW);
  return result.out_TC;
}

GatedRmsNorm::GatedRmsNorm(std::string path, int64_t size, double eps)
    : Module(std::move(path)), weight_(add_parameter("weight", {size}, {.init = shard::Init::kOnes})), eps_(eps) {}

at::Tensor GatedRmsNorm::forward(const at::Tensor& x, const at::Tensor& gate, const ops::Operators& ops) const {
  enter();
  return ops.gated_rms_norm(x, gate, weight_.value(), eps_);
}

GatedDeltaNet::GatedDeltaNet(const std::string& path, const Qwen3_5MoeConfig& config)
    : Module(path),
      sizes_(config.delta),
      A_log_(add_parameter("A_log", {sizes_.value_heads}, {.keep_fp32 = true, .init = shard::Init::kLogUniform})),
      dt_bias_(add_parameter("dt_bias", {sizes_.value_heads}, {.keep_fp32 = true, .init = shard::Init::kOnes})),
      in_proj_qkv_(path + ".in_proj_qkv", config.hidden_size, channels(sizes_)),
      in_proj_z_(path + ".in_proj_z", config.hidden_size, value_width(sizes_)),
      in_proj_b_(path + ".in_proj_b", config.hidden_size, sizes_.value_heads),
      in_proj_a_(path + ".in_proj_a", config.hidden_size, sizes_.value_heads),
      out_proj_(path + ".out_proj", value_width(sizes_), config.hidden_size),
      conv1d_(path + ".conv1d", channels(sizes_), sizes_.conv_taps),
      norm_(path + ".norm", sizes_.value_head_dim, config.rms_norm_eps) {
  for (Module* child :
       {static_cast<Module*>(&in_proj_qkv_), static_cast<Module*>(&in_proj_z_), static_cast<Module*>(&in_proj_b_),
        static_cast<Module*>(&in_proj_a_), static_cast<Module*>(&out_proj_), static_cast<Module*>(&conv1d_),
        static_cast<Module*>(&norm_)}) {
    add_child(*child);
  }
}

at::Tensor GatedDeltaNet::forward(const at::Tensor& hidden_TH, const LayerContext& context) const {
  enter();
  const ops::Operators& ops = *context.runtime.ops;
  const bool is_generating = !context.caches.empty();
  const at::Tensor mixed_TC = conv1d_.forward(in_proj_qkv_.forward(hidden_TH), context);
  const int64_t keys = key_width(sizes_), chunk_size = context.runtime.chunk_size;
  const auto rule =
      is_generating && has_few_tokens(context.batch, chunk_size) ? ops.gated_delta_step : ops.gated_delta_rule;
  const ops::DeltaGates gates =
      ops.delta_gates(in_proj_a_.forward(hidden_TH), in_proj_b_.forward(hidden_TH), A_log_.value(), dt_bias_.value());
  const ops::GatedDeltaResult result =
      rule({.q_TKD = heads_of(mixed_TC, 0, sizes_.key_heads, sizes_.key_head_dim),
            .k_TKD = heads_of(mixed_TC, keys, sizes_.key_heads, sizes_.key_head_dim),
            .v_TVE = heads_of(mixed_TC, 2 * keys, sizes_.value_heads, sizes_.value_head_dim),
            .g_TV = gates.g_TV,
            .beta_TV = gates.beta_TV,
            .cu_seqlens = context.batch.cu_seqlens,
            .initial_state_BVDE = states_of(context.caches, &LayerCache::delta_state_VDE),
            .chunk_size = chunk_size,
            .needs_final_state = is_generating});
  if (is_generating) keep_states(context.caches, &LayerCache::delta_state_VDE, result.final_state_BVDE);
  const at::Tensor gate_TVE = in_proj_z_.forward(hidden_TH).unflatten(1, {sizes_.value_heads, sizes_.value_head_dim});
  return out_proj_.forward(norm_.forward(result.out_TVE, gate_TVE, ops).flatten(1));
}

}  // namespace expertmesh::model
