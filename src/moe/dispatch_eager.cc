// SPDX-License-Identifier: Apache-2.0
// The reference dispatcher: sort by expert, exchange, expert MLP, exchange back, weighted sum at the source.
// Forward keeps the rows that arrived and the activations before SwiGLU. Backward sends the gradient rows unweighted
// with their fp32 routing weights: the experts apply the weight in fp32 between their two products, where
// d weight = <grad of the activation, activation> falls out as well. Whether a gradient is formed depends on
// requires_grad alone, which is equal on all ranks, so the exchanges are too.
#include "moe/dispatch_eager.h"

#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "moe/expert_mlp.h"
#include "moe/stages.h"

namespace expertmesh::moe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Saved : torch::CustomClassHolder {
  DispatchPlan plan;
  comm::Group* ep = nullptr;  // outlives the graph
  const ExpertMlp* mlp = nullptr;
};

const char* const kSavedKey = "plan";

class EagerFunction : public torch::autograd::Function<EagerFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_TH, const at::Tensor& weights_TK,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                            const c10::intrusive_ptr<Saved>& saved, bool saves) {
    const DispatchPlan& plan = saved->plan;
    const at::Tensor tokens = hidden_TH.contiguous();
    const at::Tensor routing_TK = weights_TK.contiguous();
    const at::Tensor arrived =
        plan.exchanges ? exchange_rows(plan, permute_tokens(plan, tokens), *saved->ep, "moe dispatch") : tokens;
    ExpertForward result = saved->mlp->forward(arrived, plan.rows(), {gate_up_proj, down_proj});
    if (saves) {
      ctx->save_for_backward({arrived, result.gate_up_R2I, routing_TK, gate_up_proj, down_proj});
      ctx->saved_data[kSavedKey] = c10::IValue::make_capsule(saved);
    }
    result.gate_up_R2I.reset();
    if (plan.exchanges) result.y_RH = exchange_rows_back(plan, result.y_RH, *saved->ep, "moe combine");
    return combine(plan, result.y_RH, routing_TK);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto saved = c10::static_intrusive_pointer_cast<Saved>(ctx->saved_data[kSavedKey].toCapsule());
    const variable_list tensors = ctx->get_saved_variables();
    const DispatchPlan& plan = saved->plan;
    const bool exchanges = plan.exchanges;
    const ExpertGradNeeds needs{ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2),
                                ctx->needs_input_grad(3)};
    at::Tensor grad = grad_outputs[0].contiguous();
    at::Tensor routing = tensors[2].reshape({-1});
    if (exchanges) {
      grad = exchange_rows(plan, permute_tokens(plan, grad), *saved->ep, "moe grad dispatch");
      routing = exchange_rows(plan, permute_choices(plan, tensors[2]), *saved->ep, "moe grad weights");
    }
    ExpertGrads grads =
        saved->mlp->backward({grad, tensors[0], tensors[1], routing, plan.rows(), {tensors[3], tensors[4]}, needs});
    if (exchanges && needs.x) grads.x_RH = exchange_rows_back(plan, grads.x_RH, *saved->ep, "moe grad combine");
    if (exchanges && needs.weights) {
      grads.weights_R = exchange_rows_back(plan, grads.weights_R, *saved->ep, "moe grad weights back");
      grads.weights_R = unpermute_choices(plan, grads.weights_R);
    }
    return {needs.x ? combine(plan, grads.x_RH, {}) : at::Tensor(),
            needs.weights ? grads.weights_R.view({plan.num_tokens, plan.top_k}) : at::Tensor(),
            grads.gate_up_proj,
            grads.down_proj,
            at::Tensor(),
            at::Tensor()};
  }
};

class EagerDispatcher : public Dispatcher {
 public:
  std::string_view name() const override { return "eager"; }

  at::Tensor forward(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing,
                     const ExpertWeights& weights, comm::Group& ep) const override {
    EXPERTMESH_CHECK(hidden_TH.scalar_type() == weights.gate_up_proj.scalar_type() &&
                         hidden_TH.scalar_type() == weights.down_proj.scalar_type(),
                     "hidden and expert weights differ in dtype");
    EXPERTMESH_CHECK(weights_TK.scalar_type() == at::kFloat && weights_TK.sizes() == routing.ids_TK.sizes(),
                     "routing weights are fp32, one per choice");
    EXPERTMESH_CHECK(routing.ids_TK.size(0) == hidden_TH.size(0), "routing of {} tokens for {}", routing.ids_TK.size(0),
                     hidden_TH.size(0));
    auto saved = c10::make_intrusive<Saved>();
    saved->plan = plan_dispatch(routing, weights.gate_up_proj.size(0), ep);
    saved->ep = &ep;
    saved->mlp = &choose_expert_mlp(hidden_TH.scalar_type());
    const bool saves =
        at::GradMode::is_enabled() && (hidden_TH.requires_grad() || weights_TK.requires_grad() ||
                                       weights.gate_up_proj.requires_grad() || weights.down_proj.requires_grad());
    return EagerFunction::apply(hidden_TH, weights_TK, weights.gate_up_proj, weights.down_proj, saved, saves);
  }
};

}  // namespace

std::unique_ptr<Dispatcher> make_eager_dispatcher() { return std::make_unique<EagerDispatcher>(); }

}  // namespace expertmesh::moe
