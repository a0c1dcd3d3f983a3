// SPDX-License-Identifier: Apache-2.0
// The reference dispatcher: sort by expert, exchange, expert MLP, exchange back, weighted sum at the source, one after
// the other. Forward keeps the rows that arrived and the activations before SwiGLU. Backward sends the gradient rows
// unweighted with their fp32 routing weights: the experts apply the weight in fp32 between their two products, where
// d weight = <grad of the activation, activation> falls out as well.
#include "moe/dispatch_eager.h"

#include "moe/dispatch_step.h"
#include "moe/stage_clock.h"
#include "moe/stages.h"

namespace expertmesh::moe {
namespace {

class EagerStep : public DispatchStep {
 public:
  explicit EagerStep(const StepContext& context)
      : plan_(plan_dispatch(context.routing, context.num_local_experts, context.ep)),
        ep_(context.ep),
        mlp_(context.mlp),
        traffic_(context.traffic) {}

  at::Tensor forward(const at::Tensor& tokens_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     std::vector<at::Tensor>& kept, const Beside& /*beside*/) override {
    const at::Tensor arrived = exchange_tokens(tokens_TH, "moe dispatch");
    ExpertForward result = timed(Stage::kExperts, [&] { return mlp_.forward(arrived, plan_.rows(), weights); });
    kept = {arrived, std::move(result.gate_up_R2I)};
    return combine(plan_, return_rows(result.y_RH, "moe combine"), routing_TK);
  }

  StepGrads backward(const at::Tensor& grad_TH, const at::Tensor& routing_TK, const ExpertWeights& weights,
                     const std::vector<at::Tensor>& kept, const ExpertGradNeeds& needs,
                     const Beside& /*beside*/) override {
    const at::Tensor grad = exchange_tokens(grad_TH, "moe grad dispatch");
    const at::Tensor routing = exchange_rows(plan_, permute_choices(plan_, routing_TK), ep_, "moe grad weights");
    const ExpertRows rows = plan_.rows();
    const ExpertGrads grads =
        timed(Stage::kExperts, [&] { return mlp_.backward({grad, kept[0], kept[1], routing, rows, weights, needs}); });
    StepGrads result{{}, {}, grads.gate_up_proj, grads.down_proj};
    if (needs.x) {
      result.tokens_TH = combine(plan_, return_rows(grads.x_RH, "moe grad combine"), {});
    }
    if (needs.weights) {
      result.routing_TK =
          unpermute_choices(plan_, exchange_rows_back(plan_, grads.weights_R, ep_, "moe grad weights back"));
    }
    return result;
  }

 private:
  at::Tensor exchange_tokens(const at::Tensor& tokens_TH, std::string_view tag) const {
    const at::Tensor rows_RH = permute_tokens(plan_, tokens_TH);
    count(rows_RH, plan_.send_counts);
    return exchange_rows(plan_, rows_RH, ep_, tag);
  }
  at::Tensor return_rows(const at::Tensor& rows_RH, std::string_view tag) const {
    count(rows_RH, plan_.recv_counts);
    return exchange_rows_back(plan_, rows_RH, ep_, tag);
  }
  void count(const at::Tensor& rows_RH, const std::vector<int64_t>& counts) const {
    const int64_t to_others = rows_RH.size(0) - counts[static_cast<size_t>(ep_.rank())];
    traffic_->add(to_others, to_others, rows_RH);
  }

  DispatchPlan plan_;
  comm::Group& ep_;
  const ExpertMlp& mlp_;
  std::shared_ptr<TokenTraffic> traffic_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_eager_dispatcher(const DispatcherOptions& options) {
  return make_step_dispatcher("eager", options, [](const StepContext& context) -> std::unique_ptr<DispatchStep> {
    return std::make_unique<EagerStep>(context);
  });
}

}  // namespace expertmesh::moe
