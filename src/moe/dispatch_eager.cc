// SPDX-License-Identifier: Apache-2.0
// The reference dispatcher: sort by expert, exchange, expert MLP, exchange back, weighted sum at the source, one after
// the other. Forward keeps the rows that arrived and the activations before SwiGLU. Backward sends the gradient rows
// unweighted with their fp32 routing weights: the experts apply the weight in fp32 between their two products, where
// d weight = <grad of the activation, activation> falls out as well.
#include "moe/dispatch_eager.h"

#include "moe/dispatch_step.h"
#include "moe/stages.h"

namespace expertmesh::moe {
namespace {

class EagerStep : public DispatchStep {
 public:
  explicit EagerStep(const StepContext& context)
      : plan_(plan_dispatch(context.routing, context.num_local_experts, context.ep)),
        ep_(context.ep),
        mlp_(context.mlp) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept) override {
    const at::Tensor arrived = exchange_rows(plan_, permute_tokens(plan_, tokens_TH), ep_, "moe dispatch");
    ExpertForward result = mlp_.forward(arrived, plan_.rows(), weights);
    kept = {arrived, std::move(result.gate_up_R2I)};
    return combine(plan_, exchange_rows_back(plan_, result.y_RH, ep_, "moe combine"), routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs) override {
    const at::Tensor grad = exchange_rows(plan_, permute_tokens(plan_, grad_TH), ep_, "moe grad dispatch");
    const at::Tensor routing = exchange_rows(plan_, permute_choices(plan_, routing_TK), ep_, "moe grad weights");
    const ExpertGrads grads = mlp_.backward({grad, kept[0], kept[1], routing, plan_.rows(), weights, needs});
    StepGrads result{{}, {}, grads.gate_up_proj, grads.down_proj};
    if (needs.x) {
      result.tokens_TH = combine(plan_, exchange_rows_back(plan_, grads.x_RH, ep_, "moe grad combine"), {});
    }
    if (needs.weights) {
      result.routing_TK =
          unpermute_choices(plan_, exchange_rows_back(plan_, grads.weights_R, ep_, "moe grad weights back"));
    }
    return result;
  }

 private:
  DispatchPlan plan_;
  comm::Group& ep_;
  const ExpertMlp& mlp_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_eager_dispatcher() {
  return make_step_dispatcher("eager", [](const StepContext& context) -> std::unique_ptr<DispatchStep> {
    return std::make_unique<EagerStep>(context);
  });
}

}  // namespace expertmesh::moe
