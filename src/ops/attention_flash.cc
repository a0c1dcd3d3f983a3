// SPDX-License-Identifier: Apache-2.0
// Documents one by one through ATen's flash kernel, which has no entry for documents of different lengths. A mask over
// all of them would compute every pair. Query heads that share a key/value head are its batch entry's heads, with a
// stride of 0 on the key side: nothing is repeated in memory. Outputs and gradients of all documents land in one
// tensor each.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Documents : torch::CustomClassHolder {
  std::vector<int64_t> cu_seqlens;
  double scale = 1.0;
};

// Tokens [begin, end) of [T, M * repeat, D] as [M, repeat, L, D].
at::Tensor query_view(const at::Tensor& x, int64_t begin, int64_t end, int64_t kv_heads) {
  return x.narrow(0, begin, end - begin)
      .view({end - begin, kv_heads, x.size(1) / kv_heads, x.size(2)})
      .permute({1, 2, 0, 3});
}

// Tokens [begin, end) of [T, M, D] as [M, repeat, L, D].
at::Tensor key_view(const at::Tensor& x, int64_t begin, int64_t end, int64_t repeat) {
  return x.narrow(0, begin, end - begin)
      .permute({1, 0, 2})
      .unsqueeze(1)
      .expand({x.size(1), repeat, end - begin, x.size(2)});
}

// [M, repeat, L, D] summed over repeat, into tokens [begin, end) of [T, M, D].
void add_up_heads(const at::Tensor& from, const at::Tensor& to, int64_t begin, int64_t end) {
  const at::Tensor summed = from.size(1) == 1 ? from.select(1, 0) : at::sum(from, {1});
  to.narrow(0, begin, end - begin).copy_(summed.permute({1, 0, 2}));
}

class FlashAttention : public torch::autograd::Function<FlashAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<Documents>& documents) {
    const at::Tensor q = q_in.contiguous();
    const int64_t kv_heads = k.size(1), repeat = q.size(1) / kv_heads;
    const at::Tensor out = new_like(q);
    variable_list saved = {q, k, v, out};
    const std::vector<int64_t>& cu = documents->cu_seqlens;
    for (size_t d = 0; d + 1 < cu.size(); ++d) {
      if (cu[d] == cu[d + 1]) continue;
      const auto [part, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          query_view(q, cu[d], cu[d + 1], kv_heads), key_view(k, cu[d], cu[d + 1], repeat),
          key_view(v, cu[d], cu[d + 1], repeat), 0.0, /*is_causal=*/true, {}, documents->scale);
      query_view(out, cu[d], cu[d + 1], kv_heads).copy_(part);
      saved.push_back(logsumexp);
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["documents"] = c10::IValue::make_capsule(documents);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("attention backward");
    const auto documents = c10::static_intrusive_pointer_cast<Documents>(ctx->saved_data["documents"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const at::Tensor grad_out = grad_outputs[0].contiguous();
    const int64_t kv_heads = k.size(1), repeat = q.size(1) / kv_heads;
    const at::Tensor grad_q = new_like(q);
    const at::Tensor grad_k = new_like(k);
    const at::Tensor grad_v = new_like(v);
    const std::vector<int64_t>& cu = documents->cu_seqlens;
    span.does([&] {
      return base::Work{.flops = attention_flops(cu, q.size(1), q.size(2), kAttentionBackwardProducts),
                        .bytes = 4 * bytes_of(q) + 2 * bytes_of(k) + 2 * bytes_of(v)};
    });
    size_t next = 4;
    for (size_t d = 0; d + 1 < cu.size(); ++d) {
      const int64_t begin = cu[d], end = cu[d + 1];
      if (begin == end) continue;
      const auto [part_q, part_k, part_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          query_view(grad_out, begin, end, kv_heads), query_view(q, begin, end, kv_heads),
          key_view(k, begin, end, repeat), key_view(v, begin, end, repeat), query_view(out, begin, end, kv_heads),
          saved[next++], 0.0, /*is_causal=*/true, {}, documents->scale);
      query_view(grad_q, begin, end, kv_heads).copy_(part_q);
      add_up_heads(part_k, grad_k, begin, end);
      add_up_heads(part_v, grad_v, begin, end);
    }
    return {grad_q, grad_k, grad_v, at::Tensor()};
  }
};

}  // namespace

at::Tensor attention_flash(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                           std::span<const int64_t> cu_seqlens, double scale) {
  const auto documents = c10::make_intrusive<Documents>();
  documents->cu_seqlens.assign(cu_seqlens.begin(), cu_seqlens.end());
  documents->scale = scale;
  return FlashAttention::apply(q_TND, k_TMD, v_TMD, documents);
}

}  // namespace expertmesh::ops::native
