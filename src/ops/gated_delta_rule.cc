// SPDX-License-Identifier: Apache-2.0
// Units (document, key head), longest first. The gates go in as fp32, whatever they came in; so does the state.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ops/cpu/gated_delta.h"
#include "ops/native.h"
#include "ops/new_tensor.h"
#include "ops/operator_work.h"
#include "ops/raw.h"
#include "ops/units.h"

namespace expertmesh::ops::native {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DeltaUnits : torch::CustomClassHolder {
  std::vector<cpu::GatedDeltaUnit> units;
  cpu::GatedDeltaShape shape;
  int64_t kept_states = 0;  // of all documents
  int64_t documents = 0;
  bool needs_final_state = false;
  bool keeps_states = false;  // for a backward
};

c10::intrusive_ptr<DeltaUnits> make_units(const GatedDeltaInput& input) {
  auto units = c10::make_intrusive<DeltaUnits>();
  units->shape = {.key_heads = input.q_TKD.size(1),
                  .value_heads = input.v_TVE.size(1),
                  .key_dim = input.q_TKD.size(2),
                  .value_dim = input.v_TVE.size(2),
                  .chunk_size = input.chunk_size};
  units->documents = static_cast<int64_t>(input.cu_seqlens.size()) - 1;
  units->needs_final_state = input.needs_final_state;
  for (int64_t b = 0; b < units->documents; ++b) {
    const int64_t begin = input.cu_seqlens[static_cast<size_t>(b)], end = input.cu_seqlens[static_cast<size_t>(b) + 1];
    for (int64_t head = 0; head < units->shape.key_heads; ++head) {
      units->units.push_back({begin, end, b, head, units->kept_states});
    }
    units->kept_states += cpu::kept_states(end - begin, input.chunk_size);
  }
  std::stable_sort(units->units.begin(), units->units.end(),
                   [](const auto& a, const auto& b) { return a.end - a.begin > b.end - b.begin; });
  return units;
}

// Heads side by side in each token; tokens may be apart.
at::Tensor with_dense_heads(const at::Tensor& x_THD) {
  const bool is_dense = x_THD.stride(2) == 1 && x_THD.stride(1) == x_THD.size(2);
  return is_dense ? x_THD : x_THD.contiguous();
}

at::Tensor new_states(const DeltaUnits& units, int64_t count) {
  return new_tensor({count, units.shape.value_heads, units.shape.key_dim, units.shape.value_dim}, at::kFloat);
}

template <typename T>
cpu::GatedDeltaTensors<T> inputs_of(const variable_list& x) {
  return {.q = raw<T>(x[0]),
          .k = raw<T>(x[1]),
          .v = raw<T>(x[2]),
          .g = raw<float>(x[3]),
          .beta = raw<float>(x[4]),
          .initial_state = x[5].defined() ? raw<float>(x[5]) : nullptr};
}

cpu::GatedDeltaShape shape_of(const DeltaUnits& units, const variable_list& x) {
  cpu::GatedDeltaShape shape = units.shape;
  shape.q_stride = x[0].stride(0);
  shape.k_stride = x[1].stride(0);
  shape.v_stride = x[2].stride(0);
  return shape;
}

class GatedDeltaRule : public torch::autograd::Function<GatedDeltaRule> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& g, const at::Tensor& beta,
                               const std::optional<at::Tensor>& initial_state,
                               const c10::intrusive_ptr<DeltaUnits>& units) {
    variable_list saved = {with_dense_heads(q), with_dense_heads(k),
                           with_dense_heads(v), g.contiguous(),
                           beta.contiguous(),   initial_state ? initial_state->contiguous() : at::Tensor()};
    variable_list results = {new_tensor(v.sizes(), v.scalar_type())};
    if (units->needs_final_state) results.push_back(new_states(*units, units->documents));
    saved.push_back(units->keeps_states ? new_states(*units, units->kept_states) : at::Tensor());
    const cpu::GatedDeltaShape shape = shape_of(*units, saved);
    with_element_type(v.scalar_type(), [&]<typename T>(T) {
      cpu::GatedDeltaTensors<T> tensors = inputs_of<T>(saved);
      tensors.out = mutable_raw<T>(results[0]);
      if (units->needs_final_state) tensors.final_state = mutable_raw<float>(results[1]);
      if (units->keeps_states) tensors.chunk_states = mutable_raw<float>(saved[6]);
      for_each_unit(static_cast<int64_t>(units->units.size()), cpu::gated_delta_forward_scratch(shape),
                    [&](int64_t i, float* scratch) {
                      cpu::gated_delta_forward(tensors, shape, units->units[static_cast<size_t>(i)], scratch);
                    });
    });
    ctx->save_for_backward(saved);
    ctx->saved_data["units"] = c10::IValue::make_capsule(units);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const base::Span span("gated_delta_rule backward");
    const auto units = c10::static_intrusive_pointer_cast<DeltaUnits>(ctx->saved_data["units"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const cpu::GatedDeltaShape shape = shape_of(*units, saved);
    const at::Tensor grad_out =
        grad_outputs[0].defined() ? grad_outputs[0].contiguous() : at::zeros(saved[2].sizes(), saved[2].options());
    const bool has_final = grad_outputs.size() > 1 && grad_outputs[1].defined();
    const at::Tensor grad_final = has_final ? grad_outputs[1].contiguous() : at::Tensor();
    variable_list grads;
    for (size_t i = 0; i < 6; ++i) {
      grads.push_back(saved[i].defined() ? new_tensor(saved[i].sizes(), saved[i].scalar_type()) : at::Tensor());
    }
    with_element_type(grad_out.scalar_type(), [&]<typename T>(T) {
      cpu::GatedDeltaTensors<T> tensors = inputs_of<T>(saved);
      tensors.chunk_states = const_cast<float*>(raw<float>(saved[6]));  // only read
      tensors.grad_out = raw<T>(grad_out);
      tensors.grad_final_state = has_final ? raw<float>(grad_final) : nullptr;
      tensors.grad_q = mutable_raw<T>(grads[0]);
      tensors.grad_k = mutable_raw<T>(grads[1]);
      tensors.grad_v = mutable_raw<T>(grads[2]);
      tensors.grad_g = mutable_raw<float>(grads[3]);
      tensors.grad_beta = mutable_raw<float>(grads[4]);
      if (grads[5].defined()) tensors.grad_initial_state = mutable_raw<float>(grads[5]);
      for_each_unit(static_cast<int64_t>(units->units.size()), cpu::gated_delta_backward_scratch(shape),
                    [&](int64_t i, float* scratch) {
                      cpu::gated_delta_backward(tensors, shape, units->units[static_cast<size_t>(i)], scratch);
                    });
    });
    grads.emplace_back();  // of the units
    return grads;
  }
};

bool needs_backward(const GatedDeltaInput& input) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* x : {&input.q_TKD, &input.k_TKD, &input.v_TVE, &input.g_TV, &input.beta_TV}) {
    if (x->requires_grad()) return true;
  }
  return input.initial_state_BVDE.defined() && input.initial_state_BVDE.requires_grad();
}

}  // namespace

GatedDeltaResult gated_delta_rule(const GatedDeltaInput& input) {
  check_input(input);
  const c10::intrusive_ptr<DeltaUnits> units = make_units(input);
  units->keeps_states = needs_backward(input);
  std::optional<at::Tensor> state;
  if (input.initial_state_BVDE.defined()) state = input.initial_state_BVDE.to(at::kFloat);
  const variable_list results = GatedDeltaRule::apply(input.q_TKD, input.k_TKD, input.v_TVE, input.g_TV.to(at::kFloat),
                                                      input.beta_TV.to(at::kFloat), state, units);
  return {results[0], input.needs_final_state ? results[1] : at::Tensor()};
}

GatedDeltaResult gated_delta_step(const GatedDeltaInput& input) {
  check_input(input);
  EXPERTMESH_CHECK(!needs_backward(input), "gated_delta_step keeps no graph: take gated_delta_rule");
  const c10::intrusive_ptr<DeltaUnits> units = make_units(input);
  const variable_list x = {with_dense_heads(input.q_TKD),
                           with_dense_heads(input.k_TKD),
                           with_dense_heads(input.v_TVE),
                           input.g_TV.to(at::kFloat).contiguous(),
                           input.beta_TV.to(at::kFloat).contiguous(),
                           at::Tensor()};
  const cpu::GatedDeltaShape shape = shape_of(*units, x);
  const GatedDeltaResult result{new_tensor(input.v_TVE.sizes(), input.v_TVE.scalar_type()),
                                new_states(*units, units->documents)};
  if (input.initial_state_BVDE.defined()) {
    result.final_state_BVDE.copy_(input.initial_state_BVDE);
  } else {
    result.final_state_BVDE.zero_();
  }
  const int64_t heads_of_key = shape.value_heads / shape.key_heads, size = shape.key_dim * shape.value_dim;
  with_element_type(input.v_TVE.scalar_type(), [&]<typename T>(T) {
    cpu::GatedDeltaTensors<T> tensors = inputs_of<T>(x);
    tensors.out = mutable_raw<T>(result.out_TVE);
    for_each_unit(static_cast<int64_t>(units->units.size()), cpu::gated_delta_tokens_scratch(shape),
                  [&](int64_t i, float* scratch) {
                    const cpu::GatedDeltaUnit& unit = units->units[static_cast<size_t>(i)];
                    for (int64_t h = unit.key_head * heads_of_key; h < (unit.key_head + 1) * heads_of_key; ++h) {
                      float* state =
                          mutable_raw<float>(result.final_state_BVDE) + (unit.document * shape.value_heads + h) * size;
                      cpu::gated_delta_tokens(tensors, shape, unit, h, state, scratch);
                    }
                  });
  });
  return {result.out_TVE, input.needs_final_state ? result.final_state_BVDE : at::Tensor()};
}

}  // namespace expertmesh::ops::native
