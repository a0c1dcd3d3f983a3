// SPDX-License-Identifier: Apache-2.0
// Tasks (document, key/value head) of the own kernel, longest first, taken by the threads one after the other.
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/cpu/attention.h"
#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"
#include "ops/units.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Tasks : torch::CustomClassHolder {
  std::vector<cpu::AttentionUnit> units;
  cpu::AttentionShape shape;
  double backward_flops = 0;
};

c10::intrusive_ptr<Tasks> make_tasks(const at::Tensor& q, const at::Tensor& k, std::span<const int64_t> cu_seqlens,
                                     double scale) {
  auto tasks = c10::make_intrusive<Tasks>();
  tasks->shape = {.heads = q.size(1), .kv_heads = k.size(1), .head_dim = q.size(2), .scale = static_cast<float>(scale)};
  tasks->backward_flops = attention_flops(cu_seqlens, q.size(1), q.size(2), kAttentionBackwardProducts);
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    if (cu_seqlens[d] == cu_seqlens[d + 1]) continue;
    for (int64_t head = 0; head < k.size(1); ++head) tasks->units.push_back({cu_seqlens[d], cu_seqlens[d + 1], head});
  }
  std::stable_sort(tasks->units.begin(), tasks->units.end(),
                   [](const auto& a, const auto& b) { return a.end - a.begin > b.end - b.begin; });
  return tasks;
}

template <typename Body>
void run_tasks(const Tasks& tasks, const Body& body) {
  if (tasks.units.empty()) return;
  const int64_t longest = tasks.units.front().end - tasks.units.front().begin;
  for_each_unit(static_cast<int64_t>(tasks.units.size()), cpu::attention_scratch_size(tasks.shape, longest),
                [&](int64_t i, float* scratch) { body(tasks.units[static_cast<size_t>(i)], scratch); });
}

class TileAttention : public torch::autograd::Function<TileAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, const c10::intrusive_ptr<Tasks>& tasks) {
    const at::Tensor q = q_in.contiguous(), k = k_in.contiguous(), v = v_in.contiguous();
    const at::Tensor out = new_like(q);
    const at::Tensor logsumexp = new_tensor({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
    with_element_type(q.scalar_type(), [&]<typename T>(T) {
      const cpu::AttentionTensors<T> tensors{.q = raw<T>(q),
                                             .k = raw<T>(k),
                                             .v = raw<T>(v),
                                             .out = mutable_raw<T>(out),
                                             .logsumexp = mutable_raw<float>(logsumexp)};
      run_tasks(*tasks, [&](const cpu::AttentionUnit& unit, float* scratch) {
        cpu::attention_forward(tensors, tasks->shape, unit, scratch);
      });
    });
    ctx->save_for_backward({q, k, v, out, logsumexp});
    ctx->saved_data["tasks"] = c10::IValue::make_capsule(tasks);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("attention backward");
    const auto tasks = c10::static_intrusive_pointer_cast<Tasks>(ctx->saved_data["tasks"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad_out = grad_outputs[0].contiguous();
    const at::Tensor grad_q = new_like(saved[0]), grad_k = new_like(saved[1]), grad_v = new_like(saved[2]);
    span.does([&] {
      return base::Work{.flops = tasks->backward_flops,
                        .bytes = 4 * bytes_of(grad_q) + 2 * bytes_of(grad_k) + 2 * bytes_of(grad_v)};
    });
    with_element_type(grad_q.scalar_type(), [&]<typename T>(T) {
      const cpu::AttentionTensors<T> tensors{.q = raw<T>(saved[0]),
                                             .k = raw<T>(saved[1]),
                                             .v = raw<T>(saved[2]),
                                             .out = const_cast<T*>(raw<T>(saved[3])),  // only read
                                             .logsumexp = const_cast<float*>(raw<float>(saved[4])),
                                             .grad_out = raw<T>(grad_out),
                                             .grad_q = mutable_raw<T>(grad_q),
                                             .grad_k = mutable_raw<T>(grad_k),
                                             .grad_v = mutable_raw<T>(grad_v)};
      run_tasks(*tasks, [&](const cpu::AttentionUnit& unit, float* scratch) {
        cpu::attention_backward(tensors, tasks->shape, unit, scratch);
      });
    });
    return {grad_q, grad_k, grad_v, at::Tensor()};
  }
};

}  // namespace

at::Tensor attention_tiles(const at::Tensor& q_TND, const at::Tensor& k_TMD, const at::Tensor& v_TMD,
                           std::span<const int64_t> cu_seqlens, double scale) {
  return TileAttention::apply(q_TND, k_TMD, v_TMD, make_tasks(q_TND, k_TMD, cu_seqlens, scale));
}

}  // namespace expertmesh::ops::native
