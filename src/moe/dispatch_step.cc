// SPDX-License-Identifier: Apache-2.0
#include "moe/dispatch_step.h"

#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "moe/stages.h"

namespace expertmesh::moe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const ExpertMlp& expert_mlp_for(const Routing& routing, at::ScalarType dtype) {
  const ExpertMlp& few = few_rows_expert_mlp();
  return routing.is_generating && few.supports(dtype) ? few : choose_expert_mlp(dtype);
}

// Experts read the tokens' own rows.
class LocalStep : public DispatchStep {
 public:
  explicit LocalStep(const StepContext& context)
      : plan_(plan_dispatch(context.routing, context.num_local_experts, context.ep)), mlp_(context.mlp) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept) override {
    const ExpertForward result = mlp_.forward(tokens_TH, plan_.rows(), weights);
    kept = {tokens_TH, result.gate_up_R2I};
    return combine(plan_, result.y_RH, routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs) override {
    const ExpertGrads grads =
        mlp_.backward({grad_TH, kept[0], kept[1], routing_TK.view({-1}), plan_.rows(), weights, needs});
    return {needs.x ? combine(plan_, grads.x_RH, {}) : at::Tensor(),
            needs.weights ? grads.weights_R.view({plan_.num_tokens, plan_.top_k}) : at::Tensor(), grads.gate_up_proj,
            grads.down_proj};
  }

 private:
  DispatchPlan plan_;
  const ExpertMlp& mlp_;
};

struct StepHolder : torch::CustomClassHolder {
  std::unique_ptr<DispatchStep> step;
};

const char* const kStepKey = "step";

class StepFunction : public torch::autograd::Function<StepFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_TH, const at::Tensor& weights_TK,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                            const c10::intrusive_ptr<StepHolder>& holder, bool saves) {
    const at::Tensor routing_TK = weights_TK.contiguous();
    variable_list kept;
    at::Tensor out_TH = holder->step->forward(hidden_TH.contiguous(), routing_TK, {gate_up_proj, down_proj}, kept);
    if (saves) {
      kept.insert(kept.end(), {routing_TK, gate_up_proj, down_proj});
      ctx->save_for_backward(kept);
      ctx->saved_data[kStepKey] = c10::IValue::make_capsule(holder);
    }
    return out_TH;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto holder = c10::static_intrusive_pointer_cast<StepHolder>(ctx->saved_data[kStepKey].toCapsule());
    variable_list kept = ctx->get_saved_variables();
    const size_t own = kept.size() - 3;
    const at::Tensor routing_TK = kept[own];
    const ExpertWeights weights{kept[own + 1], kept[own + 2]};
    kept.resize(own);
    const ExpertGradNeeds needs{ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2),
                                ctx->needs_input_grad(3)};
    const StepGrads grads = holder->step->backward(grad_outputs[0].contiguous(), routing_TK, weights, kept, needs);
    return {grads.tokens_TH, grads.routing_TK, grads.gate_up_proj, grads.down_proj, at::Tensor(), at::Tensor()};
  }
};

class StepDispatcher : public Dispatcher {
 public:
  StepDispatcher(std::string_view name, MakeStep make) : name_(name), make_(make) {}

  std::string_view name() const override { return name_; }

  at::Tensor forward(const at::Tensor& hidden_TH, const at::Tensor& weights_TK, Routing& routing,
                     const ExpertWeights& weights, comm::Group& ep) const override {
    EXPERTMESH_CHECK(hidden_TH.scalar_type() == weights.gate_up_proj.scalar_type() &&
                         hidden_TH.scalar_type() == weights.down_proj.scalar_type(),
                     "hidden and expert weights differ in dtype");
    EXPERTMESH_CHECK(weights_TK.scalar_type() == at::kFloat && weights_TK.sizes() == routing.ids_TK.sizes(),
                     "routing weights are fp32, one per choice");
    EXPERTMESH_CHECK(routing.ids_TK.size(0) == hidden_TH.size(0), "routing of {} tokens for {}", routing.ids_TK.size(0),
                     hidden_TH.size(0));
    const StepContext context{routing, weights.gate_up_proj.size(0), ep,
                              expert_mlp_for(routing, hidden_TH.scalar_type())};
    auto holder = c10::make_intrusive<StepHolder>();
    if (ep.size() == 1) {
      holder->step = std::make_unique<LocalStep>(context);
    } else {
      holder->step = make_(context);
    }
    const bool saves =
        at::GradMode::is_enabled() && (hidden_TH.requires_grad() || weights_TK.requires_grad() ||
                                       weights.gate_up_proj.requires_grad() || weights.down_proj.requires_grad());
    return StepFunction::apply(hidden_TH, weights_TK, weights.gate_up_proj, weights.down_proj, holder, saves);
  }

 private:
  std::string_view name_;
  MakeStep make_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_step_dispatcher(std::string_view name, MakeStep make) {
  return std::make_unique<StepDispatcher>(name, make);
}

}  // namespace expertmesh::moe
