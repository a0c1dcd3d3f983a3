// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <limits>
#include <vector>

#include "ops/reference/reference.h"
#include "ops/reference/wide.h"

namespace expertmesh::ops::reference {
namespace {

// [L, M, D] as [M * repeat, L, D], each head `repeat` times.
at::Tensor repeat_heads(const at::Tensor& x_LMD, int64_t repeat) {
  const int64_t length = x_LMD.size(0), heads = x_LMD.size(1), head_dim = x_LMD.size(2);
  return x_LMD.permute({1, 0, 2})
      .unsqueeze(1)
      .expand({heads, repeat, length, head_dim})
      .reshape({heads * repeat, length, head_dim});
}

at::Tensor attend(const at::Tensor& q_LND, const at::Tensor& k_LMD, const at::Tensor& v_LMD, double scale) {
  const int64_t length = q_LND.size(0), repeat = q_LND.size(1) / k_LMD.size(1);
  const at::Tensor q = q_LND.permute({1, 0, 2});
  const at::Tensor scores = at::matmul(q, repeat_heads(k_LMD, repeat).transpose(1, 2)) * scale;
  const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor masked = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  const at::Tensor probs = at::softmax(masked, -1, at::kFloat).to(q.scalar_type());
  return at::matmul(probs, repeat_heads(v_LMD, repeat)).permute({1, 0, 2});
}

// The rows of the new tokens alone.
at::Tensor attend_cached(const at::Tensor& q_LND, const at::Tensor& k_MSD, const at::Tensor& v_MSD, double scale) {
  const int64_t tokens = q_LND.size(0), length = k_MSD.size(1), repeat = q_LND.size(1) / k_MSD.size(0);
  const at::Tensor k = wide(k_MSD).repeat_interleave(repeat, 0), v = wide(v_MSD).repeat_interleave(repeat, 0);
  const at::Tensor scores = at::matmul(wide(q_LND).permute({1, 0, 2}), k.transpose(1, 2)) * scale;
  const at::Tensor later = at::ones({tokens, length}, q_LND.options().dtype(at::kBool)).triu(length - tokens + 1);
  const at::Tensor probs = at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
  return at::matmul(probs, v).permute({1, 0, 2}).to(q_LND.scalar_type());
}

}  // namespace

at::Tensor attention(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                     std::span<const int64_t> cu_seqlens, double scale) {
  std::vector<at::Tensor> outputs;
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const int64_t begin = cu_seqlens[d], length = cu_seqlens[d + 1] - begin;
    outputs.push_back(
        attend(q_TND.narrow(0, begin, length), k_TMD.narrow(0, begin, length), v_TMD.narrow(0, begin, length), scale));
  }
  if (outputs.empty()) return q_TND;  // no tokens
  return at::cat(outputs, 0);
}

at::Tensor cached_attention(const CachedAttentionInput& input) {
  check_input(input);
  std::vector<at::Tensor> outputs;
  for (size_t b = 0; b < input.lengths.size(); ++b) {
    const int64_t begin = input.cu_seqlens[b], tokens = input.cu_seqlens[b + 1] - begin;
    if (tokens == 0) continue;
    outputs.push_back(attend_cached(input.q_TND.narrow(0, begin, tokens),
                                    input.keys_MSD[b].narrow(1, 0, input.lengths[b]),
                                    input.values_MSD[b].narrow(1, 0, input.lengths[b]), input.scale));
  }
  if (outputs.empty()) return input.q_TND;  // no tokens
  return at::cat(outputs, 0);
}

}  // namespace expertmesh::ops::reference
